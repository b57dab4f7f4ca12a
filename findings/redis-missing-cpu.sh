#!/usr/bin/env bash
# Redis 7.0.15 (Debian 12), 2026-11-29.
#
# `server_cpulist` binds the main thread of Redis to CPUs. If none of them is there, Redis runs on
# all CPUs, writes no line about it at any log level, and CONFIG GET shows the list as if it were in
# force. If some are there, it takes those. taskset fails in the first case.
#
# Consequence: a configuration that moves to a smaller host, or to a container with other CPUs,
# leaves Redis unbound, and nothing but the kernel tells: look at /proc/PID/status.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
unpack redis-server=5:7.0.15-1~deb12u10 redis-tools=5:7.0.15-1~deb12u10

all=$(sed -n 's/^Cpus_allowed_list:\s*//p' /proc/self/status)
first=${all%%[,-]*}
missing=$(($(getconf _NPROCESSORS_CONF) + 500))

# The CPUs of a server with this list, what CONFIG GET says, and the lines of its log about CPUs.
server() {
  local process
  "$root/usr/bin/redis-server" --port 0 --unixsocket "$here/socket" --dir "$here" --save '' \
    --loglevel debug --server_cpulist "$1" >"$here/log" 2>&1 &
  process=$!
  until [ "$(redis-cli -s "$here/socket" ping 2>&1)" = PONG ]; do sleep 0.1; done
  sed -n 's/^Cpus_allowed_list:\s*//p' "/proc/$process/status"
  redis-cli -s "$here/socket" config get server_cpulist | tail -1
  grep -iE 'cpu|affinity' "$here/log" || true
  kill "$process"
  wait "$process" 2>/dev/null || true
}

expect "server_cpulist $first" "$first"$'\n'"$first" "$(server "$first")"
expect "server_cpulist $missing" "$all"$'\n'"$missing" "$(server "$missing")"
expect "server_cpulist $first,$missing" "$first"$'\n'"$first,$missing" "$(server "$first,$missing")"
if taskset -c "$missing" true 2>/dev/null; then echo "taskset took CPU $missing"; exit 1; fi
