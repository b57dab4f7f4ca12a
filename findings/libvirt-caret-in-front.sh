#!/usr/bin/env bash
# libvirt 9.0.0 and tuned 2.20.0 (Debian 12), libvirt's driver test:///default, 2026-11-28.
#
# A caret takes a CPU or a node out of a list. libvirt reads a list from left to right: `0-3,^2` is
# 0-1,3, and `^2,0-3` is 0-3. Its documentation speaks of a number excluded "from a previous range";
# its schema takes the caret in front for valid, and so does its parser, which drops it without a
# word. tuned, which isolates the CPUs of KVM hosts, takes both lists for 0, 1, 3.
#
# Consequence: a guest runs on the CPU and takes memory of the node that was to be left out, and two
# programs of one host disagree on the same string.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack libvirt-clients=9.0.0-4+deb12u2 libvirt0=9.0.0-4+deb12u2 tuned=2.20.0-1

# Whether libvirt's schema allows a list.
valid() {
  local pattern
  pattern=$(sed -n '/define name="cpuset"/,/define>/s/.*<param name="pattern">\(.*\)<.*/\1/p' \
    "$root/usr/share/libvirt/schemas/basictypes.rng")
  grep -qxE "$pattern" <<<"$1" && echo valid || echo invalid
}

# The lists of a domain, defined with this list and read back.
lists() {
  cat >"$here/domain.xml" <<END
<domain type='test'>
  <name>pinned</name>
  <memory unit='MiB'>64</memory>
  <vcpu cpuset='$1'>1</vcpu>
  <os><type>hvm</type></os>
  <cputune><vcpupin vcpu='0' cpuset='$1'/></cputune>
  <numatune><memory mode='strict' nodeset='$1'/></numatune>
</domain>
END
  virsh -q -c test:///default "define $here/domain.xml; dumpxml pinned" 2>&1 |
    grep -oE "error.*|<vcpu |<vcpupin |<memory mode|(cpu|node)set='[^']*'" | paste -sd' '
}

tuned() {
  PYTHONPATH=$root/usr/lib/python3/dist-packages python3 -c '
import sys
from tuned.utils.commands import commands
print(commands().cpulist_unpack(sys.argv[1]))' "$1"
}

expect '0-3,^2 by the schema of libvirt' valid "$(valid '0-3,^2')"
expect '^2,0-3 by the schema of libvirt' valid "$(valid '^2,0-3')"
expect '0-3,^2 in libvirt' \
  "<vcpu  cpuset='0-1,3' <vcpupin  cpuset='0-1,3' <memory mode nodeset='0-1,3'" \
  "$(lists '0-3,^2')"
expect '^2,0-3 in libvirt' "<vcpu  cpuset='0-3' <vcpupin  cpuset='0-3' <memory mode nodeset='0-3'" \
  "$(lists '^2,0-3')"
expect '0-3,^2 in tuned' '[0, 1, 3]' "$(tuned '0-3,^2')"
expect '^2,0-3 in tuned' '[0, 1, 3]' "$(tuned '^2,0-3')"
