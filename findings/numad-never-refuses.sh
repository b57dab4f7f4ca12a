#!/usr/bin/env bash
# numad 0.5+20150602 (Debian 12), 2026-11-27.
#
# `numad -w VCPUS:MIB`, which libvirt runs for placement='auto', answers every size with a list of
# nodes and exit code 0: 95 TiB, a million vCPUs, and no vCPU at all.
#
# Consequence: a manager that starts guests by numad's answer learns neither that memory is short
# nor that the request makes no sense. It has to compare the memory itself.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack 'numad=0.5+20150602-8+b1'

# The answer and the exit code. numad writes a log, which stays in namespaces of its own.
ask() {
  unshare --user --map-root-user --mount --ipc bash -c "
    mount -t tmpfs tmpfs /var/log && mount -t tmpfs tmpfs /run
    numad -w $1; echo exit code \$?"
}

all=$(cat /sys/devices/system/node/has_memory)
[ "$all" = 0 ] || { echo "needs a machine of one node, this one has $all"; exit 1; }
answer=$'0\nexit code 0'
expect '-w 1:100, one vCPU and 100 MiB' "$answer" "$(ask 1:100)"
expect '-w 2:99999999, 95 TiB' "$answer" "$(ask 2:99999999)"
expect '-w 1000000:1, a million vCPUs' "$answer" "$(ask 1000000:1)"
expect '-w 0:100, no vCPU' "$answer" "$(ask 0:100)"
