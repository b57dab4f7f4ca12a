#!/usr/bin/env bash
# HAProxy 2.6.12 (Debian 12), 2026-11-28.
#
# `cpu-map 1/1 0` and `cpu-map 1/2 1` ask for thread 1 on CPU 0 and thread 2 on CPU 1. Both threads
# then run on CPU 0. HAProxy binds the whole process by the line for thread 1. The CPUs of thread 2
# have none in common with those of the process, and for this case its manual says that "no
# specific binding will be set for the thread". The order of the lines does not matter, and
# `haproxy -c` calls them valid. In the foreground (-db) the line for thread 1 has no effect at all,
# so that neither thread is bound. The short form of the same map, `auto:1/1-2 0 1`, binds each
# thread to its CPU.
#
# Consequence: a load balancer with a line for each thread has all threads on one CPU, and the CPUs
# that were set aside for the others are idle. Such a map should be one line with `auto:`.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack haproxy=2.6.12-1+deb12u4

mapfile -t cpus < <(sed -n 's/^Cpus_allowed_list:\s*//p' /proc/self/status | tr , '\n' |
  while IFS=- read -r from to; do seq "$from" "${to:-$from}"; done)
[ "${#cpus[@]}" -ge 2 ] || { echo "needs two CPUs"; exit 1; }
a=${cpus[0]} b=${cpus[1]}
all=$(sed -n 's/^Cpus_allowed_list:\s*//p' /proc/self/status)

# The CPUs of both threads, with these lines for cpu-map and this option of HAProxy.
threads() {
  local mode=$1 map process
  shift
  {
    printf 'global\n  nbthread 2\n'
    for map in "$@"; do printf '  cpu-map %s\n' "$map"; done
    printf 'defaults\n  mode tcp\n  timeout connect 9s\n  timeout client 9s\n  timeout server 9s\n'
    printf 'listen here\n  bind unix@%s/socket\n' "$here"
  } >"$here/haproxy.cfg"
  "$root/usr/sbin/haproxy" -c -f "$here/haproxy.cfg" 2>&1
  if [ "$mode" = -D ]; then
    "$root/usr/sbin/haproxy" -D -p "$here/pid" -f "$here/haproxy.cfg"
    process=$(cat "$here/pid")
  else
    "$root/usr/sbin/haproxy" "$mode" -f "$here/haproxy.cfg" >"$here/said" 2>&1 &
    process=$!
  fi
  sleep 2
  sed -n 's/^Cpus_allowed_list:\s*//p' "/proc/$process"/task/*/status | paste -sd' '
  kill "$process"
}

valid='Configuration file is valid'
expect "cpu-map 1/1 $a, cpu-map 1/2 $b" "$valid"$'\n'"$a $a" "$(threads -D "1/1 $a" "1/2 $b")"
expect "cpu-map 1/2 $b, cpu-map 1/1 $a" "$valid"$'\n'"$a $a" "$(threads -D "1/2 $b" "1/1 $a")"
expect "cpu-map 1/1 $b, cpu-map 1/2 $a" "$valid"$'\n'"$b $b" "$(threads -D "1/1 $b" "1/2 $a")"
expect "cpu-map 1/1 $b" "$valid"$'\n'"$b $b" "$(threads -D "1/1 $b")"
expect "cpu-map 1/2 $b" "$valid"$'\n'"$all $b" "$(threads -D "1/2 $b")"
expect "cpu-map auto:1/1-2 $a $b" "$valid"$'\n'"$a $b" "$(threads -D "auto:1/1-2 $a $b")"
expect "cpu-map 1/1 $a, cpu-map 1/2 $b, in the foreground" "$valid"$'\n'"$all $all" \
  "$(threads -db "1/1 $a" "1/2 $b")"
