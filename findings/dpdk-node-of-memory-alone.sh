#!/usr/bin/env bash
# DPDK 22.11.11 (Debian 12), on a made copy of /sys/devices/system/node, 2026-12-03. Needs root.
#
# A node without CPUs, such as CXL memory, is no NUMA node for DPDK: it counts the nodes that have a
# CPU.
#
# Consequence: an application that goes through rte_socket_count() and rte_socket_id_by_idx() never
# sees that memory, and no message tells of it.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack librte-eal23=22.11.11-0+deb12u1

nodes=$here/nodes
mkdir -p "$nodes"/node0/cpu{0,1} "$nodes"/node1
echo 0-1 | tee "$nodes"/{online,possible} "$nodes"/node0/cpulist > "$nodes"/has_memory
echo > "$nodes"/node1/cpulist
echo '10 20' > "$nodes"/node0/distance
echo '20 10' > "$nodes"/node1/distance
for node in 0 1; do
  echo "Node $node MemTotal: 8388608 kB" > "$nodes/node$node/meminfo"
done
cat > "$here/count.py" <<'EOF'
import ctypes
eal = ctypes.CDLL("librte_eal.so.23")
words = [b"x", b"--no-huge", b"-m", b"64", b"--no-telemetry", b"--no-shconf", b"--no-pci"]
assert eal.rte_eal_init(len(words), (ctypes.c_char_p * len(words))(*words)) >= 0
print([eal.rte_socket_id_by_idx(at) for at in range(eal.rte_socket_count())])
EOF
# shellcheck disable=SC2016
found=$(unshare --mount bash -c 'mount --bind "$1" /sys/devices/system/node && exec python3 "$2"' \
  - "$nodes" "$here/count.py" 2>&1)
expect 'nodes with both CPUs on node 0, and memory on the nodes 0 and 1' \
  $'EAL: Detected NUMA nodes: 1\n[0]' "$(grep -E 'NUMA|^\[' <<<"$found")"
