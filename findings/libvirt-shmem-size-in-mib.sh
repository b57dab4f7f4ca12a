#!/usr/bin/env bash
# libvirt 9.0.0 (Debian 12), its driver test:///default, 2026-11-27.
#
# <shmem><size> takes any unit and, without one, counts bytes, where the <memory> of the same domain
# counts KiB. libvirt shows it in whole MiB, rounded down: 512 KiB as 0 M, 1.5 MiB as 1 M. What it
# shows is read again as that size; its driver for QEMU takes 0 for the default, 4 MiB (by its
# source, not run here).
#
# Consequence: a domain that is defined again from dumpxml shares memory of another size. A program
# that reads dumpxml counts none of 512 KiB.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack libvirt-clients=9.0.0-4+deb12u2 libvirt0=9.0.0-4+deb12u2

cat >"$here/domain.xml" <<'END'
<domain type='test'>
  <name>shared</name>
  <memory>131072</memory>
  <vcpu>1</vcpu>
  <os><type>hvm</type></os>
  <devices>
    <shmem name='a'><model type='ivshmem-plain'/><size unit='KiB'>512</size></shmem>
    <shmem name='b'><model type='ivshmem-plain'/><size unit='KiB'>1536</size></shmem>
    <shmem name='c'><model type='ivshmem-plain'/><size>8388608</size></shmem>
  </devices>
</domain>
END
shown=$(virsh -q -c test:///default "define $here/domain.xml; dumpxml shared" 2>&1)
expect 'sizes that libvirt shows of 512 KiB, 1536 KiB and 8388608 without a unit' \
  "<memory unit='KiB'>131072</memory>
<size unit='M'>0</size>
<size unit='M'>1</size>
<size unit='M'>8</size>" \
  "$(grep -oE '<(memory|size)[^>]*>[0-9]+</(memory|size)>' <<<"$shown")"
