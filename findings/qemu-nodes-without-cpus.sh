#!/usr/bin/env bash
# QEMU 7.2.22 (Debian 12), its machines pc-q35-6.1 and pc-q35-6.2, 2026-11-28.
#
# `-smp 4 -numa node -numa node` leaves the choice of CPUs to QEMU, which deals out whole sockets in
# turn. Up to machine pc-q35-6.1 each CPU is a socket: two CPUs for each node. From 6.2 on all CPUs
# are cores of one socket: node 0 gets every CPU, and node 1 is half of the memory without a CPU.
# QEMU warns of a list of CPUs that is not complete, and not of this.
#
# Consequence: with `-M q35`, which is the newest machine, or after the machine was raised, the same
# command line starts a guest in which half of the memory is remote to every CPU.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
version=1:7.2+dfsg-7+deb12u18+b3
unpack "qemu-system-x86=$version" "qemu-system-common=$version" seabios=1.16.2-1 \
  "qemu-system-data=${version%+b3}"

# The number of CPUs of each node of a machine that does not run, and what QEMU warns of.
nodes() {
  printf '{"execute": "%s"}' qmp_capabilities query-hotpluggable-cpus quit |
    qemu-system-x86_64 -nodefaults -display none -accel tcg -S -qmp stdio -m 128 \
      -L "$root/usr/share/seabios" -object memory-backend-ram,id=a,size=64M \
      -object memory-backend-ram,id=b,size=64M "$@" 2>"$here/warnings" |
    grep -o '"node-id": [0-9]*' | sed 's/"node-id"/node/' | sort | uniq -c | sed 's/^ *//'
  grep -o 'warning: CPU(s) not present in any NUMA nodes' "$here/warnings" || true
}

cells=(-numa 'node,memdev=a' -numa 'node,memdev=b')
expect '-M pc-q35-6.1 -smp 4, CPUs by node' $'2 node: 0\n2 node: 1' \
  "$(nodes -M pc-q35-6.1 -smp 4 "${cells[@]}")"
expect '-M pc-q35-6.2 -smp 4' '4 node: 0' "$(nodes -M pc-q35-6.2 -smp 4 "${cells[@]}")"
expect '-M q35 -smp 4' '4 node: 0' "$(nodes -M q35 -smp 4 "${cells[@]}")"
expect '-M q35 -smp 4,sockets=2' $'2 node: 0\n2 node: 1' \
  "$(nodes -M q35 -smp 4,sockets=2 "${cells[@]}")"
expect '-M q35 -smp 4, node 0 has the list 0-1 and node 1 none' \
  $'4 node: 0\nwarning: CPU(s) not present in any NUMA nodes' \
  "$(nodes -M q35 -smp 4 -numa node,memdev=a,cpus=0-1 -numa node,memdev=b)"
