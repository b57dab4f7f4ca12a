#!/usr/bin/env bash
# musl 1.2.3 (Debian 12) and the installed glibc of Debian 12, 2026-12-03. Needs gcc and two CPUs.
#
# `sysconf(_SC_NPROCESSORS_CONF)` is the number of CPUs that the machine has, by its name and in
# glibc. In musl it is the number of CPUs that the process may use. A process that taskset or a
# cpuset has bound to CPU 1 has one configured CPU there, and runs on CPU 1.
#
# Consequence: a table with an entry for each configured CPU, indexed by sched_getcpu(), is too
# short in a container on musl that was bound to CPUs other than the first. Count from
# /sys/devices/system/cpu/possible instead.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack musl-dev=1.2.3-1 musl=1.2.3-1

[ "$(nproc --all)" -ge 2 ] || { echo "needs two CPUs"; exit 1; }
cat > "$here/counts.c" <<'C'
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

int main(void) {
  printf("%ld configured", sysconf(_SC_NPROCESSORS_CONF));
  printf(", running on CPU %d\n", sched_getcpu());
}
C
gcc -o "$here/glibc" "$here/counts.c"
musl=$root/usr/lib/x86_64-linux-musl
gcc -static -nostdinc -isystem "$root/usr/include/x86_64-linux-musl" -nostdlib \
  -o "$here/musl" "$musl/crt1.o" "$here/counts.c" "$musl/libc.a" "$(gcc -print-libgcc-file-name)"

all=$(getconf _NPROCESSORS_CONF)
expect 'glibc, on CPU 1 alone' "$all configured, running on CPU 1" "$(taskset -c 1 "$here/glibc")"
expect 'musl, on CPU 1 alone' '1 configured, running on CPU 1' "$(taskset -c 1 "$here/musl")"
