# shellcheck shell=bash
# Unpacks packages of Debian into a temporary folder, for the scripts beside this file.
set -euo pipefail

here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
root=$here/root

# unpack PACKAGE=VERSION...: these packages, and those of their dependencies that are not installed.
# Needs no root.
unpack() {
  local file wanted=()
  while read -r file; do
    file=${file//%3a/:}
    wanted+=("${file%%_*}=$(cut -d_ -f2 <<<"$file")")
  done < <(apt-get --print-uris --yes --reinstall --no-install-recommends install "$@" |
    sed -nE "s/^'[^']*' ([^ ]*\.deb) .*/\1/p")
  mkdir "$here/packages" "$root"
  local options=(--quiet=2 --option APT::Sandbox::User=root)
  (cd "$here/packages" && apt-get "${options[@]}" download "${wanted[@]}")
  for file in "$here"/packages/*.deb; do dpkg-deb --extract "$file" "$root"; done
  export PATH="$root/usr/bin:$root/bin:$PATH"
  local libraries
  libraries=$(find "$root" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
  export LD_LIBRARY_PATH=$libraries
}

# expect WHAT EXPECTED SEEN: states the output, and fails where it is another one.
expect() {
  printf '%s:\n%s\n' "$1" "$3"
  [ "$2" = "$3" ] || {
    printf 'it was, when this was written:\n%s\n' "$2"
    exit 1
  }
}
