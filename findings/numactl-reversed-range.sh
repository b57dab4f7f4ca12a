#!/usr/bin/env bash
# numactl 2.0.16 (Debian 12) and taskset of util-linux 2.38.1, 2026-11-27.
#
# numactl takes the range 1-0 for CPU 1 alone, without a word. taskset refuses it, as the kernel
# does. So a list with its ends exchanged binds a program to one CPU instead of failing.
#
# Consequence: a tool that passes an operator's list on to numactl has to check the order itself.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack numactl=2.0.16-1 util-linux=2.38.1-5+deb12u3

bound() {
  "$@" grep Cpus_allowed_list: /proc/self/status 2>&1 | tr -d '\t'
}

[ "$(nproc --all)" -ge 2 ] || { echo "needs two CPUs"; exit 1; }
expect 'numactl -C 0-1' 'Cpus_allowed_list:0-1' "$(bound numactl -C 0-1)"
expect 'numactl -C 1-0' 'Cpus_allowed_list:1' "$(bound numactl -C 1-0)"
expect 'taskset -c 1-0' 'taskset: failed to parse CPU list: 1-0' "$(bound taskset -c 1-0)"
