#!/usr/bin/env bash
# systemd 252.39 (Debian 12), its test mode, which loads units and starts nothing, 2026-11-28.
#
# The manual says that NUMAMask= belongs to the selected NUMAPolicy=. Without a policy, the mask is
# one: NUMAMask=0 makes the service prefer node 0. So a drop-in with an empty NUMAPolicy= does not
# take `NUMAPolicy=bind` back, but turns it into `preferred`, as long as the mask stays.
# `systemd-analyze verify` has nothing to say.
#
# Consequence: a service whose policy was removed still gets its memory from one node first, and a
# mask that was prepared for later acts at once. NUMAPolicy=default, or an empty mask, ends it.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack systemd=252.39-1~deb12u2 libsystemd-shared=252.39-1~deb12u2
chmod 755 "$here"
mkdir "$here/units"
mkdir -m 777 "$here/home"

# What systemd makes of these lines of a unit's file and of its drop-in. The test mode refuses root.
loaded() {
  local user=()
  [ "$(id -u)" != 0 ] || user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  mkdir -p "$here/units/placed.service.d"
  printf '[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/true\n%b\n' "$1" \
    >"$here/units/placed.service"
  printf '[Service]\n%b\n' "$2" >"$here/units/placed.service.d/later.conf"
  systemd-analyze verify "$here/units/placed.service" 2>&1
  HOME=$here/home XDG_CONFIG_HOME=$here/home XDG_RUNTIME_DIR=$here/home \
    SYSTEMD_UNIT_PATH=$here/units "${user[@]}" "$root/lib/systemd/systemd" --user --test \
    --unit=placed.service --log-target=console >"$here/said" 2>&1 || true
  grep -oE '(NUMAPolicy|NUMAMask|Command Line): .*' "$here/said" | paste -sd' '
}

ran='Command Line: /bin/true'
expect 'NUMAPolicy=bind, NUMAMask=0' "NUMAPolicy: bind NUMAMask: 0 $ran" \
  "$(loaded 'NUMAPolicy=bind\nNUMAMask=0' '')"
expect 'NUMAMask=0' "NUMAPolicy: preferred NUMAMask: 0 $ran" "$(loaded 'NUMAMask=0' '')"
expect 'NUMAPolicy=bind, NUMAMask=0, and a drop-in with NUMAPolicy=' \
  "NUMAPolicy: preferred NUMAMask: 0 $ran" \
  "$(loaded 'NUMAPolicy=bind\nNUMAMask=0' 'NUMAPolicy=')"
expect 'NUMAPolicy=bind, NUMAMask=0, and a drop-in with NUMAPolicy=default' \
  "NUMAPolicy: default NUMAMask: 0 $ran" \
  "$(loaded 'NUMAPolicy=bind\nNUMAMask=0' 'NUMAPolicy=default')"
expect 'NUMAPolicy=bind, NUMAMask=0, and a drop-in with NUMAPolicy= and NUMAMask=' "$ran" \
  "$(loaded 'NUMAPolicy=bind\nNUMAMask=0' 'NUMAPolicy=\nNUMAMask=')"
