#!/usr/bin/env bash
# hwloc 2.9.0 and numactl 2.0.16 (Debian 12) on Linux 6.18, 2026-11-28.
#
# `hwloc-bind --membind node:0 --mempolicy bind` does not bind memory to the node. hwloc asks the
# kernel for the policy preferred-many, which lets it take other nodes when this one is full, and
# reports "(bind)" itself. What the kernel and numactl call bind needs --strict as well.
#
# Consequence: where a program under `numactl --membind` runs out of memory, one under hwloc-bind
# goes on with remote memory and no sign of it. A benchmark of one node's memory (HBM, CXL) may be
# one of two nodes.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack hwloc-nox=2.9.0-1 libhwloc15=2.9.0-1 numactl=2.0.16-1

node=$(hwloc-calc --intersect numa --physical-output node:0)
bind=(hwloc-bind --membind node:0 --mempolicy bind)
policy() { "$@" numactl --show 2>&1 | grep '^policy:'; }

expect 'hwloc-bind --membind node:0' 'policy: preferred-many' \
  "$(policy hwloc-bind --membind node:0 --)"
expect 'hwloc-bind --membind node:0 --mempolicy bind' 'policy: preferred-many' \
  "$(policy "${bind[@]}" --)"
expect 'the policy that hwloc reports then' '(bind)' \
  "$("${bind[@]}" -- hwloc-bind --get --membind | grep -o '(.*)')"
expect 'hwloc-bind --membind node:0 --mempolicy bind --strict' 'policy: bind' \
  "$(policy "${bind[@]}" --strict --)"
expect "numactl --membind $node" 'policy: bind' "$(policy numactl --membind "$node")"
