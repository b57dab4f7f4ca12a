#!/usr/bin/env bash
# systemd 252.39 (Debian 12), its test mode, which loads units and starts nothing, 2026-11-28.
#
# A drop-in with AllowedCPUs=2 does not move a service from the CPUs 0-1 of its unit to CPU 2. It
# gets 0-2. The same holds for AllowedMemoryNodes= and for NUMAMask=. The manual says so of
# CPUAffinity= alone (NUMAMask= has its syntax), and CPUWeight=, on the same page as AllowedCPUs=,
# takes the value of the drop-in. `systemd-analyze verify` has nothing to say.
#
# Consequence: a service that was to leave a CPU or a node keeps it, and its memory is bound to two
# nodes. A drop-in needs an empty assignment before its own list.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack systemd=252.39-1~deb12u2 libsystemd-shared=252.39-1~deb12u2
chmod 755 "$here"
mkdir -p "$here/units/placed.service.d"
mkdir -m 777 "$here/home"

# What systemd makes of these lines of a unit's file and of its drop-in, for one setting. The test
# mode refuses root.
loaded() {
  local setting=$1 user=()
  [ "$(id -u)" != 0 ] || user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  printf '[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/true\n%b\n' "$2" \
    >"$here/units/placed.service"
  printf '[Service]\n%b\n' "$3" >"$here/units/placed.service.d/later.conf"
  systemd-analyze verify "$here/units/placed.service" 2>&1
  HOME=$here/home XDG_CONFIG_HOME=$here/home XDG_RUNTIME_DIR=$here/home \
    SYSTEMD_UNIT_PATH=$here/units "${user[@]}" "$root/lib/systemd/systemd" --user --test \
    --unit=placed.service --log-target=console >"$here/said" 2>&1 || true
  sed -nE "/-> Unit placed.service:/,/-> Unit [^p]/s/^\s*($setting: .*)/\1/p" "$here/said"
}

expect 'AllowedCPUs=0-1, and a drop-in with AllowedCPUs=2' 'AllowedCPUs: 0-2' \
  "$(loaded AllowedCPUs AllowedCPUs=0-1 AllowedCPUs=2)"
expect 'AllowedCPUs=0-1, and a drop-in with AllowedCPUs= and AllowedCPUs=2' 'AllowedCPUs: 2' \
  "$(loaded AllowedCPUs AllowedCPUs=0-1 'AllowedCPUs=\nAllowedCPUs=2')"
expect 'AllowedMemoryNodes=0, and a drop-in with AllowedMemoryNodes=1' 'AllowedMemoryNodes: 0-1' \
  "$(loaded AllowedMemoryNodes AllowedMemoryNodes=0 AllowedMemoryNodes=1)"
expect 'NUMAPolicy=bind, NUMAMask=0, and a drop-in with NUMAMask=1' 'NUMAMask: 0-1' \
  "$(loaded NUMAMask 'NUMAPolicy=bind\nNUMAMask=0' NUMAMask=1)"
expect 'CPUWeight=50, and a drop-in with CPUWeight=70' 'CPUWeight: 70' \
  "$(loaded CPUWeight CPUWeight=50 CPUWeight=70)"
