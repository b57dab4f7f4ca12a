#!/usr/bin/env bash
# LLVM's libomp 14.0.6 and GCC's libgomp 12.2.0 (Debian 12), 2026-11-28.
#
# An exclamation mark in OMP_PLACES excludes the place that follows it, by OpenMP's specification.
# libgomp takes that place out of the list: `{0},{1},!{0}` is the place {1}. libomp takes nothing
# out. It adds a place to the list, of all CPUs but the excluded one, without a warning: with two
# CPUs the same string is {0},{1},{1}. The first thread runs on the CPU that was to be left free.
#
# Consequence: a program built by Clang puts work on CPUs that the same program built by GCC keeps
# away from, and has more places, so that the other threads may change their CPUs, too. A list of
# places for both has no exclusion in it.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack libomp5-14=1:14.0.6-12 libgomp1=12.2.0-14+deb12u1

mapfile -t cpus < <(sed -n 's/^Cpus_allowed_list:\s*//p' /proc/self/status | tr , '\n' |
  while IFS=- read -r from to; do seq "$from" "${to:-$from}"; done)
[ "${#cpus[@]}" -ge 2 ] || { echo "needs two CPUs"; exit 1; }
a=${cpus[0]} b=${cpus[1]}

# The places that a library makes of a list, and the CPUs of a team of two threads. Both libraries
# have GOMP_parallel. Two CPUs are allowed, whatever the machine has.
placed() {
  env -u OMP_PROC_BIND -u KMP_AFFINITY -u GOMP_CPU_AFFINITY OMP_PLACES="$2" \
    taskset --cpu-list "$a,$b" python3 - "$1" 2>&1 <<'END'
import ctypes, os, sys

library = ctypes.CDLL(sys.argv[1])
cpus = {}

@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def work(_):
    cpus[library.omp_get_thread_num()] = sorted(os.sched_getaffinity(0))

places = []
for place in range(library.omp_get_num_places()):
    numbers = (ctypes.c_int * library.omp_get_place_num_procs(place))()
    library.omp_get_place_proc_ids(place, numbers)
    places.append("{%s}" % ",".join(map(str, sorted(numbers))))
library.GOMP_parallel(work, None, 2, 0)
print("places", *places)
for thread in sorted(cpus):
    print("thread", thread, "on", *cpus[thread])
END
}

expect "libgomp, {$a},{$b},!{$a}" "places {$b}
thread 0 on $b
thread 1 on $b" "$(placed libgomp.so.1 "{$a},{$b},!{$a}")"
expect "libomp, {$a},{$b},!{$a}" "places {$a} {$b} {$b}
thread 0 on $a
thread 1 on $b" "$(placed libomp.so.5 "{$a},{$b},!{$a}")"
expect "libgomp, {$a},{$b}" "places {$a} {$b}
thread 0 on $a
thread 1 on $b" "$(placed libgomp.so.1 "{$a},{$b}")"
expect "libomp, {$a},{$b}" "places {$a} {$b}
thread 0 on $a
thread 1 on $b" "$(placed libomp.so.5 "{$a},{$b}")"
