#!/usr/bin/env bash
# QEMU 7.2.22 (Debian 12), 2026-11-27.
#
# `-m 128` is 128 MiB. The machine's property `memory.size` takes the same number for bytes:
# `-M memory.size=128` starts a guest of 8 KiB (128 bytes, rounded up), without a warning. If both
# are given, -m wins, whichever comes last.
#
# Consequence: a program that reads QEMU's command line needs both rules to know a guest's memory.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
version=1:7.2+dfsg-7+deb12u18+b3
unpack "qemu-system-x86=$version" "qemu-system-common=$version"

# Bytes of a machine that does not run.
memory() {
  printf '{"execute": "%s"}' qmp_capabilities query-memory-size-summary quit |
    qemu-system-x86_64 -nodefaults -display none -accel tcg -S -qmp stdio "$@" |
    sed -nE 's/.*"base-memory": ([0-9]+).*/\1/p'
}

expect '-M none -m 128' 134217728 "$(memory -M none -m 128)"
expect '-M none,memory.size=128' 8192 "$(memory -M none,memory.size=128)"
expect '-M none,memory.size=128M' 134217728 "$(memory -M none,memory.size=128M)"
expect '-m 64 -M none,memory.size=128M' 67108864 "$(memory -m 64 -M none,memory.size=128M)"
expect '-M none,memory.size=128M -m 64' 67108864 "$(memory -M none,memory.size=128M -m 64)"
