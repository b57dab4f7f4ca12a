#!/usr/bin/env bash
# jemalloc 5.3.0 (Debian 12), 2026-11-29.
#
# `percpu_arena:percpu` gives each CPU an arena, so that memory stays near the CPU that asked for
# it. In a process that may use only some of the host's CPUs (taskset, a cpuset, a container),
# jemalloc switches this off: "Number of CPUs detected is not deterministic". It compares the
# process's CPUs with the host's. `percpu_arena:phycpu` ends in the same way. The program goes on
# with arenas that threads share in turn.
#
# Consequence: an operator who binds a database to a node to have its memory near loses the arenas
# that keep it near inside the node. `narenas:N` has to be set instead.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack libjemalloc2=5.3.0-1
library=$root/usr/lib/x86_64-linux-gnu/libjemalloc.so.2

list=$(sed -n 's/^Cpus_allowed_list:\s*//p' /proc/self/status)
if [ "$(nproc)" != "$(nproc --all)" ] || [ "$(nproc)" -lt 2 ]; then
  echo "needs all CPUs of a host that has several"
  exit 1
fi

# What jemalloc says of its arenas for a CPU each, in a process with these CPUs.
arenas() {
  MALLOC_CONF=$2,stats_print:true LD_PRELOAD=$library taskset -c "$1" /bin/true 2>&1 |
    sed -nE 's/^ *(opt.percpu_arena.*|<jemalloc>: .*)$/\1/p'
}

off='<jemalloc>: Number of CPUs detected is not deterministic. Per-CPU arena disabled.
opt.percpu_arena: "disabled"'
expect "all CPUs, percpu" 'opt.percpu_arena: "percpu"' "$(arenas "$list" percpu_arena:percpu)"
expect "one CPU, percpu" "$off" "$(arenas "${list%%[,-]*}" percpu_arena:percpu)"
expect "one CPU, phycpu" "$off" "$(arenas "${list%%[,-]*}" percpu_arena:phycpu)"
