#!/usr/bin/env bash
# libvirt 9.0.0 (Debian 12), its driver test:///default, 2026-11-27.
#
# A domain of 4 vCPUs has <cachetune vcpus='3-10'>. libvirt defines it, and drops vCPUs 4 to 10
# without a word: dumpxml shows vcpus='3'. The same range in <vcpusched> is an error.
#
# Consequence: XML that is read back differs from what was written, and a typing error in the range
# gives vCPUs no share of the cache.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack libvirt-clients=9.0.0-4+deb12u2 libvirt0=9.0.0-4+deb12u2

domain() {
  cat >"$here/domain.xml" <<END
<domain type='test'>
  <name>tuned</name>
  <memory unit='MiB'>64</memory>
  <vcpu>4</vcpu>
  <os><type>hvm</type></os>
  <cputune>$1</cputune>
</domain>
END
  virsh -q -c test:///default "define $here/domain.xml; dumpxml tuned" 2>&1
}

cache="<cache id='0' level='3' type='both' size='3' unit='MiB'/>"
expect "<cachetune vcpus='3-10'>, defined and read back" "<cachetune vcpus='3'>" \
  "$(domain "<cachetune vcpus='3-10'>$cache</cachetune>" | grep -o '<cachetune[^>]*>')"
expect "<vcpusched vcpus='3-10'>" \
  "error: unsupported configuration: vCPU '4' is not present in domain definition" \
  "$(domain "<vcpusched vcpus='3-10' scheduler='batch'/>" | grep -m1 'vCPU')"
