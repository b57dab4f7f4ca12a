#!/usr/bin/env bash
# Ruby 3.1.2 with psych 4.0.3, hiera 3.10.0 (of Puppet), and PyYAML 6.0 (Debian 12), 2026-11-28.
#
# A list of CPUs without quotes, `isolated: 1,3`, is the text "1,3" for PyYAML, as the schemas of
# YAML 1.1 and 1.2 say. Ruby drops the commas and has the number 13; `0,2` becomes 2, and
# `2,3,10,11` becomes 231011. A list with a range (`2,4-6`) and one with spaces stay text. hiera,
# which looks up Puppet's data, answers 13, without a warning.
#
# Consequence: where Puppet writes a list of CPUs or nodes to a kernel's command line or to a guest,
# the list may be one other CPU: 2 instead of 0 and 2. A template that was tested with a range works
# with that. In YAML a list of CPUs needs quotes.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack ruby3.1=3.1.7+really3.1.2-0+deb12u1 libruby3.1=3.1.7+really3.1.2-0+deb12u1 \
  hiera=3.10.0-1 python3-yaml=6.0-3+b2
RUBYLIB=$(find "$root" -type d \( -path '*/ruby/3.1.0' -o -path '*/ruby/vendor_ruby' \) |
  paste -sd:)
export RUBYLIB

cat >"$here/common.yaml" <<'END'
isolated: 1,3
housekeeping: 0,2
node1: 2,3,10,11
ranges: 2,4-6
spaces: 1, 3
quoted: "1,3"
END
printf ':backends: [yaml]\n:hierarchy: [common]\n:yaml:\n  :datadir: %s\n' "$here" \
  >"$here/hiera.yaml"

in_python() {
  PYTHONPATH=$root/usr/lib/python3/dist-packages python3 -c '
import json, sys, yaml
print(json.dumps(list(yaml.safe_load(open(sys.argv[1])).values())))' "$here/common.yaml"
}
in_ruby() {
  ruby3.1 -r yaml -e 'p YAML.safe_load(File.read(ARGV[0])).values' "$here/common.yaml"
}
in_hiera() {
  local key
  for key in isolated housekeeping node1 ranges; do
    ruby3.1 "$root/usr/bin/hiera" -c "$here/hiera.yaml" "$key"
  done | paste -sd' '
}

expect 'in PyYAML' '["1,3", "0,2", "2,3,10,11", "2,4-6", "1, 3", "1,3"]' "$(in_python)"
expect 'in Ruby' '[13, 2, 231011, "2,4-6", "1, 3", "1,3"]' "$(in_ruby)"
expect 'in hiera' '13 2 231011 2,4-6' "$(in_hiera)"
