#!/usr/bin/env bash
# mimalloc 2.0.9 (Debian 12), 2026-11-29.
#
# mimalloc keeps memory by NUMA node. It counts nodes from 0 up to the first number that is missing
# in /sys/devices/system/node. With the nodes 0 and 8, as a POWER9 host of two sockets has them, it
# finds one, and treats all memory as near. With 0, 1, 8 and 9 it finds two for four.
#
# Consequence: on a host with a gap in its nodes' numbers, mimalloc takes several nodes for one.
# `MIMALLOC_USE_NUMA_NODES` has to name the highest number plus one.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack libmimalloc2.0=2.0.9+ds-2
[ "$(id -u)" = 0 ] || { echo "needs root, to mount a folder in place of the host's nodes"; exit 1; }
library=$(find "$root" -name libmimalloc.so.2)

# The nodes that mimalloc counts on a host with these, and with a setting.
nodes() {
  local numbers=$1 number
  shift
  rm -rf "$here/nodes"
  mkdir "$here/nodes"
  for number in $numbers; do mkdir "$here/nodes/node$number"; done
  # shellcheck disable=SC2016
  env "$@" unshare --mount sh -c '
    mount --bind "$1" /sys/devices/system/node
    MIMALLOC_VERBOSE=1 LD_PRELOAD=$2 /bin/ls / 2>&1' sh "$here/nodes" "$library" |
    sed -n 's/^mimalloc: using //p'
}

expect "nodes 0 to 3" "4 numa regions" "$(nodes "0 1 2 3")"
expect "nodes 0 and 8" "1 numa regions" "$(nodes "0 8")"
expect "nodes 0, 1, 8 and 9" "2 numa regions" "$(nodes "0 1 8 9")"
expect "nodes 0 and 8, MIMALLOC_USE_NUMA_NODES=9" "9 numa regions" \
  "$(nodes "0 8" MIMALLOC_USE_NUMA_NODES=9)"
