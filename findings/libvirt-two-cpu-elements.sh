#!/usr/bin/env bash
# libvirt 9.0.0 (Debian 12), its driver test:///default, 2026-11-27.
#
# A domain has two <cpu> elements with one cell each: ids 0 and 1. libvirt takes the cells of both,
# as if one element had them: a guest of two cells. Of everything else in <cpu>, the first element
# counts alone: the second one's <topology> is gone.
#
# Consequence: a program that reads the first <cpu>, as most XML libraries suggest, sees one cell of
# a guest that has two.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack libvirt-clients=9.0.0-4+deb12u2 libvirt0=9.0.0-4+deb12u2

cat >"$here/domain.xml" <<'END'
<domain type='test'>
  <name>cells</name>
  <memory unit='MiB'>128</memory>
  <vcpu>4</vcpu>
  <os><type>hvm</type></os>
  <cpu>
    <numa><cell id='0' cpus='0-1' memory='64' unit='MiB'/></numa>
  </cpu>
  <cpu>
    <topology sockets='2' cores='2' threads='1'/>
    <numa><cell id='1' cpus='2-3' memory='64' unit='MiB'/></numa>
  </cpu>
</domain>
END
shown=$(virsh -q -c test:///default "define $here/domain.xml; dumpxml cells" 2>&1)
expect 'cells and topology that libvirt shows' \
  "<cell id='0' cpus='0-1' memory='65536' unit='KiB'/>
<cell id='1' cpus='2-3' memory='65536' unit='KiB'/>" \
  "$(grep -oE '<(cell|topology)[^>]*>' <<<"$shown")"
