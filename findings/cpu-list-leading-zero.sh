#!/usr/bin/env bash
# QEMU 7.2.22, systemd 252.39, libvirt 9.0.0, hwloc 2.9.0 and tuned 2.20.0 (Debian 12), 2026-11-28.
#
# A list whose numbers have leading zeros, as `seq -w` or a spreadsheet writes them, is octal for
# some programs: `010-011` is CPUs 8 and 9 for QEMU's -numa and for CPUAffinity= of systemd, and 10
# and 11 for libvirt, hwloc and tuned. None of them prints a warning.
#
# Consequence: a string that one inventory gives to all programs of a host names different CPUs to
# them. A tool should write such numbers anew, and never pass the string on.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
qemu=1:7.2+dfsg-7+deb12u18+b3
unpack "qemu-system-x86=$qemu" "qemu-system-common=$qemu" "qemu-system-data=${qemu%+b3}" \
  seabios=1.16.2-1 libvirt-clients=9.0.0-4+deb12u2 libvirt0=9.0.0-4+deb12u2 hwloc-nox=2.9.0-1 \
  libhwloc15=2.9.0-1 tuned=2.20.0-1 systemd=252.39-1~deb12u2 libsystemd-shared=252.39-1~deb12u2
chmod 755 "$here"

in_qemu() {
  printf '{"execute": "%s"}' qmp_capabilities query-hotpluggable-cpus quit |
    qemu-system-x86_64 -nodefaults -display none -accel tcg -S -qmp stdio -M q35 -smp 12 -m 128 \
      -L "$root/usr/share/seabios" \
      -object memory-backend-ram,id=a,size=64M -object memory-backend-ram,id=b,size=64M \
      -numa node,memdev=a,cpus=0-7,cpus=10-11 -numa "node,memdev=b,cpus=$1" 2>&1 |
    grep -oE '"core-id": [0-9]+, "thread-id": 0, "node-id": 1' |
    grep -oE '^"core-id": [0-9]+' | grep -oE '[0-9]+' | sort -n | paste -sd,
}

# systemd's test mode loads a unit and starts nothing. It refuses root.
in_systemd() {
  local user=()
  [ "$(id -u)" != 0 ] || user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  mkdir -p "$here/units"
  mkdir -m 777 "$here/home"
  printf '[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/true\nCPUAffinity=%s\n' \
    "$1" >"$here/units/bound.service"
  HOME=$here/home XDG_CONFIG_HOME=$here/home XDG_RUNTIME_DIR=$here/home \
    SYSTEMD_UNIT_PATH=$here/units "${user[@]}" "$root/lib/systemd/systemd" --user --test \
    --unit=bound.service --log-target=console >"$here/said" 2>&1 || true
  sed -nE 's/^\s*CPUAffinity: //p' "$here/said"
}

in_libvirt() {
  cat >"$here/domain.xml" <<END
<domain type='test'>
  <name>pinned</name>
  <memory unit='MiB'>64</memory>
  <vcpu cpuset='$1'>1</vcpu>
  <os><type>hvm</type></os>
</domain>
END
  virsh -q -c test:///default "define $here/domain.xml; dumpxml pinned" 2>&1 |
    sed -nE "s/.*<vcpu .*cpuset='([^']*)'.*/\1/p"
}

in_hwloc() { hwloc-calc --input 'numa:1 pu:12' --intersect pu "pu:$1"; }

in_tuned() {
  PYTHONPATH=$root/usr/lib/python3/dist-packages python3 -c '
import sys
from tuned.utils.commands import commands
print(*commands().cpulist_unpack(sys.argv[1]), sep=",")' "$1"
}

expect '010-011 in QEMU' 8,9 "$(in_qemu 010-011)"
expect '010-011 in systemd' 8-9 "$(in_systemd 010-011)"
expect '010-011 in libvirt' 10-11 "$(in_libvirt 010-011)"
expect '010-011 in hwloc' 10,11 "$(in_hwloc 010-011)"
expect '010-011 in tuned' 10,11 "$(in_tuned 010-011)"
