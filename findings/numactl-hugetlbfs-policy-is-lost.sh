#!/usr/bin/env bash
# numactl 2.0.16 (Debian 12) on Linux 6.18, 2026-11-28. Needs root, for a pool of two huge pages.
#
# numactl(8) says that `numactl --file FILE --membind NODE` sets the policy of a file "in tmpfs or
# hugetlbfs", that it "is persistent and will be used by all mappings". For a file in tmpfs that is
# so. For one in hugetlbfs numactl exits with 0, shows the policy, and nobody else ever has it: the
# kernel keeps it with numactl's own mapping, not with the file.
#
# Consequence: two processes that share huge pages (a VMM and its vhost-user backend, a database and
# its helpers) need mbind(2) each, or all pages taken by the one that has called it. fallocate(2)
# takes them by the caller's policy, not by the mapping's: in an emulated machine of four nodes, the
# pages of a file whose mapping was bound to node 3 came from elsewhere.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || { echo "needs root"; exit 1; }
unpack numactl=2.0.16-1

node=$(numactl --show | sed -nE 's/^membind: ([0-9]+).*/\1/p')
pool=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
before=$(cat "$pool")
end() {
  umount "$here/huge" "$here/tmpfs" 2>/dev/null || true
  echo "$before" >"$pool"
  rm -rf "$here"
}
trap end EXIT
echo $((before + 2)) >"$pool"
mkdir "$here/huge" "$here/tmpfs"
mount -t hugetlbfs -o pagesize=2M none "$here/huge"
mount -t tmpfs none "$here/tmpfs"

policy() { numactl --length 4m --file "$here/$1/file" "${@:2}" --dump; }
bound="0000000000000000-0000000000400000: bind : $node "

expect 'tmpfs: numactl that sets the policy' "$bound" "$(policy tmpfs --membind "$node")"
expect 'tmpfs: the next numactl' "$bound" "$(policy tmpfs)"
expect 'hugetlbfs: numactl that sets the policy' "$bound" "$(policy huge --membind "$node")"
expect 'hugetlbfs: the next numactl' '' "$(policy huge)"
