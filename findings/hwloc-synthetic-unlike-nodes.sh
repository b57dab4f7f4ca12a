#!/usr/bin/env bash
# hwloc 2.9.0 (Debian 12), 2026-11-28.
#
# hwloc describes a machine by a line of text, for example "L3Cache:2 [NUMANode(memory=...)] PU:2",
# and takes that line for a machine. It writes one size for a level, that of the first object. Of
# two nodes of 64 and 16 GiB it makes two of 64, of a node without memory one with 64 GiB, and it
# does the same to caches. It neither refuses nor warns, though it refuses a machine of which one
# node has two CPUs and the other one.
#
# Consequence: a program that is tested on the line of a machine with unlike nodes sees memory that
# the machine does not have: here 80 GiB became 128, and 16 became none.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack hwloc-nox=2.9.0-1 libhwloc15=2.9.0-1

# A machine of two nodes, with these sizes in MiB and with L3 caches of 32 and 16 MB.
machine() {
  lstopo-no-graphics --input 'l3:2(size=32MB) numa:1(memory=1111) pu:2' --output-format xml |
    awk -v first="$1" -v second="$2" '
      /type="L3Cache"/ && ++caches == 2 { sub(/cache_size="[0-9]*"/, "cache_size=\"16000000\"") }
      /type="NUMANode"/ {
        size = sprintf("%.0f", (++nodes == 1 ? first : second) * 1048576)
        sub(/local_memory="[0-9]*"/, "local_memory=\"" size "\"")
      }
      !/<page_type/' >"$here/machine.xml"
}

# The sizes of caches and nodes that hwloc shows.
sizes() {
  lstopo-no-graphics --input "$1" --output-format console |
    sed -nE 's/^ *(Machine|L3|NUMANode)( L#[0-9]+)? ?(\((P#[0-9] ?)?([^)]*)\))?.*/\1 \5/p' |
    sed 's/ *$//' | paste -sd,
}

trip() {
  machine "$1" "$2"
  sizes "$here/machine.xml"
  local line
  line=$(lstopo-no-graphics --input "$here/machine.xml" --output-format synthetic)
  echo "$line"
  sizes "$line"
}

expect 'nodes of 64 and 16 GiB, as a line, and read again' \
  'Machine 80GB total,L3 31MB,NUMANode 64GB,L3 15MB,NUMANode 16GB
L3Cache:2(size=32000000) [NUMANode(memory=68719476736)] PU:2
Machine 128GB total,L3 31MB,NUMANode 64GB,L3 31MB,NUMANode 64GB' "$(trip 65536 16384)"
expect 'nodes of 64 GiB and of no memory' \
  'Machine 64GB total,L3 31MB,NUMANode 64GB,L3 15MB,NUMANode
L3Cache:2(size=32000000) [NUMANode(memory=68719476736)] PU:2
Machine 128GB total,L3 31MB,NUMANode 64GB,L3 31MB,NUMANode 64GB' "$(trip 65536 0)"
expect 'nodes of no memory and of 16 GiB' \
  'Machine 16GB total,L3 31MB,NUMANode,L3 15MB,NUMANode 16GB
L3Cache:2(size=32000000) [NUMANode] PU:2
Machine,L3 31MB,NUMANode,L3 31MB,NUMANode' "$(trip 0 16384)"
expect 'nodes of two CPUs and of one' \
  'Cannot output assymetric topology in synthetic format.' \
  "$(lstopo-no-graphics --input "$here/machine.xml" --restrict 0x7 --output-format synthetic 2>&1 |
    head -n 1)"
