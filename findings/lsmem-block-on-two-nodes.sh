#!/usr/bin/env bash
# lsmem of util-linux 2.38.1 (Debian 12), on a made copy of /sys, 2026-12-03.
#
# Linux has memory in blocks, of up to 2 GiB on large machines. A block in which one node ends and
# the next begins has a link to both nodes. lsmem shows a block on one node, the first link that it
# reads, and joins it with the other blocks of that node.
#
# Consequence: sums by node from lsmem are off by up to the size of a block for each border between
# nodes. MemTotal of /sys/devices/system/node/node*/meminfo counts pages.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack util-linux=2.38.1-5+deb12u3

# Three blocks of 2 GiB. The border between the nodes 0 and 1 is inside of the second.
system=$here/copy/sys/devices/system
mkdir -p "$system"/{memory,node/node0,node/node1,cpu}
echo 80000000 > "$system/memory/block_size_bytes"
for block in 0 1 2; do
  mkdir "$system/memory/memory$block"
  cd "$system/memory/memory$block"
  printf '%08x\n' "$block" > phys_index
  echo online > state
  echo 0 > removable
  echo Normal > valid_zones
done
cd "$system/memory"
for link in memory0/node0 memory1/node0 memory1/node1 memory2/node1; do
  ln -s "../../node/${link#*/}" "$link"
done

nodes=$(lsmem --sysroot "$here/copy" --all --noheadings --summary=never --output BLOCK,NODE |
  tr -s ' ' | sed 's/^ //; s/^1 [01]$/1 one of both/')
expect 'block and node' $'0 0\n1 one of both\n2 1' "$nodes"
