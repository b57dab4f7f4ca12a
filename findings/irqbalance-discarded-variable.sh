#!/usr/bin/env bash
# irqbalance 1.9.2 (Debian 12), 2026-11-28.
#
# irqbalance keeps interrupts away from the CPUs of IRQBALANCE_BANNED_CPUS (an old variable, a mask)
# or IRQBALANCE_BANNED_CPULIST (a new one, a list). If the old one is set, irqbalance says that it
# "is discarded, Use IRQBALANCE_BANNED_CPULIST instead", and obeys it. If both are set, it says the
# same and discards the new one: mask 1 (CPU 0) and list 1 (CPU 1) ban CPU 0.
#
# Consequence: an operator adds the new variable, as told, and leaves the old one in place. Then the
# CPUs of the new one get interrupts. The old one has to go, or to name the same CPUs.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack irqbalance=1.9.2-1

# What irqbalance says of banned CPUs. It runs as nobody, so that it moves no interrupt.
banned() {
  local user=()
  [ "$(id -u)" != 0 ] || user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  env -u IRQBALANCE_BANNED_CPUS -u IRQBALANCE_BANNED_CPULIST "$@" \
    timeout 3 "${user[@]}" "$root/usr/sbin/irqbalance" --debug --foreground --oneshot \
    >"$here/said" 2>&1 || true
  grep -E 'discarded|^Banned CPUs' "$here/said" | sed -E 's/: [0,]*([1-9a-f])/: \1/'
}

chmod 755 "$here"
[ "$(nproc --all)" -ge 2 ] || { echo "needs two CPUs"; exit 1; }
said='IRQBALANCE_BANNED_CPUS is discarded, Use IRQBALANCE_BANNED_CPULIST instead'
expect 'the new variable, CPU 1' 'Banned CPUs: 2' "$(banned IRQBALANCE_BANNED_CPULIST=1)"
expect 'the old variable, CPU 0' "$said"$'\nBanned CPUs: 1' "$(banned IRQBALANCE_BANNED_CPUS=1)"
expect 'the old variable with CPU 0, the new one with CPU 1' "$said"$'\nBanned CPUs: 1' \
  "$(banned IRQBALANCE_BANNED_CPUS=1 IRQBALANCE_BANNED_CPULIST=1)"
