#!/usr/bin/env bash
# Podman 4.3.1 (Debian 12), 2026-11-28. Needs root, and starts no container.
#
# `podman kube generate` writes a container as YAML, for `podman kube play` or Kubernetes. It keeps
# --cpus and --memory. It leaves out --cpuset-cpus, --cpuset-mems and --cpu-shares, and says nothing
# of that on standard error, in a comment or in an annotation, though it writes annotations for
# other options that Kubernetes does not have. `podman inspect` has all five.
#
# Consequence: a container that was bound to a node's CPUs and memory runs anywhere after the round
# trip, and with the usual weight. Its binding has to be read from `podman inspect`.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || { echo "needs root"; exit 1; }
unpack podman=4.3.1+ds1-8+deb12u1+b3 conmon=2.1.6+ds1-1 crun=1.8.1-1+deb12u1

printf '[engine]\nlock_type = "file"\n' >"$here/containers.conf"
export CONTAINERS_CONF=$here/containers.conf
engine() {
  podman --root "$here/storage" --runroot "$here/run" --tmpdir "$here/state" \
    --network-config-dir "$here/networks" --storage-driver vfs --cgroup-manager cgroupfs \
    --events-backend file "$@"
}

cpu=$(sed -nE 's/^Cpus_allowed_list:\s*([0-9]+).*/\1/p' /proc/self/status)
node=$(sed -nE 's/^Mems_allowed_list:\s*([0-9]+).*/\1/p' /proc/self/status)
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$here/policy.json"
before=$(find /var/lib/containers -maxdepth 0 2>/dev/null || true)
tar -C "$here" -c policy.json |
  engine import --quiet --signature-policy "$here/policy.json" - localhost/image:1 >/dev/null
# Podman has no option for the place where it caches names of layers.
[ -n "$before" ] || rm -r /var/lib/containers/cache
[ -n "$before" ] || rmdir /var/lib/containers
engine create --name bound --network none --cpuset-cpus "$cpu" --cpuset-mems "$node" \
  --cpu-shares 512 --cpus 0.5 --memory 64m localhost/image:1 /program >/dev/null

config='{{with .HostConfig}}{{.CpusetCpus}} {{.CpusetMems}} {{.CpuShares}} {{.NanoCpus}}'
config+=' {{.Memory}}{{end}}'
expect 'CPUs, nodes, shares, CPU time and memory of the container' \
  "$cpu $node 512 500000000 67108864" "$(engine inspect --format "$config" bound)"
engine kube generate bound >"$here/pod.yaml" 2>"$here/said"
expect 'the resources of the YAML' 'resources: limits: cpu: 500m memory: 64Mi' \
  "$(sed -n '/resources:/,/Mi$/p' "$here/pod.yaml" | xargs)"
expect 'lines of the YAML that speak of a cpuset, shares or requests' 0 \
  "$(grep -ciE 'cpuset|shares|requests' "$here/pod.yaml" || true)"
expect 'what Podman said of them' '' "$(grep -iE 'cpuset|shares' "$here/said" || true)"
