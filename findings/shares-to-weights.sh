#!/usr/bin/env bash
# The Go modules github.com/opencontainers/cgroups 0.0.1 (of runc 1.3.0) and 0.0.4 (of runc 1.3.3),
# and github.com/containerd/cgroups/v3 3.0.5 (of containerd 2.1.0), 2026-11-28. Needs Go 1.23.
#
# Containers ask for CPU time in shares (1024 is usual), and cgroup v2 has weights (100 is usual).
# The module of runc 1.3.0 makes 1024 shares a weight of 39, and that of runc 1.3.3 makes them 100.
# The later one keeps no proportion: 10240 shares to 1024 are 10 to 1 in the first and 6.4 to 1 in
# the second. The module of containerd 2.1.0 counts like the first.
#
# Consequence: beside a service with the usual weight a container of the usual shares gets 28% of a
# contended CPU, and after an update of runc within 1.3 it gets 50%. Containers that were started
# before and after the update compete in a ratio that nobody asked for.
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
command -v go >/dev/null || { echo "needs Go"; exit 1; }
export GOCACHE=$here/cache GOMODCACHE=$here/modules GOPATH=$here/go GOFLAGS=-modcacherw

# The weights for these shares, by one version of a module.
weights() {
  local module=$1 call=$2
  mkdir -p "$here/program"
  cat >"$here/program/main.go" <<END
package main

import (
	"fmt"
	module "$module"
	$3
)

func main() {
	for _, shares := range []uint64{2, 16, 512, 1024, 2048, 10240, 262144} {
		fmt.Print(shares, ":", $call, " ")
	}
}
END
  printf 'module program\n\ngo 1.23.0\n' >"$here/program/go.mod"
  (
    cd "$here/program"
    {
      go get "${module%/cgroup2}@$4"
      go mod tidy
      go list -m "${module%/cgroup2}"
    } >"$here/said" 2>&1 || cat "$here/said"
    [ "$(tail -n 1 "$here/said")" = "${module%/cgroup2} $4" ] || cat "$here/said"
    go run .
  ) | sed 's/ $//'
}

runc=github.com/opencontainers/cgroups
convert='module.ConvertCPUSharesToCgroupV2Value(shares)'
expect 'shares:weight of runc 1.3.0' '2:1 16:1 512:20 1024:39 2048:79 10240:391 262144:10000' \
  "$(weights "$runc" "$convert" '' v0.0.1)"
expect 'shares:weight of runc 1.3.3' '2:1 16:5 512:59 1024:100 2048:174 10240:639 262144:10000' \
  "$(weights "$runc" "$convert" '' v0.0.4)"
resources='&spec.LinuxResources{CPU: &spec.LinuxCPU{Shares: &shares}}'
expect 'shares:weight of containerd 2.1.0' \
  '2:1 16:1 512:20 1024:39 2048:79 10240:391 262144:10000' \
  "$(weights github.com/containerd/cgroups/v3/cgroup2 \
    "*module.ToResources($resources).CPU.Weight" \
    'spec "github.com/opencontainers/runtime-spec/specs-go"' v3.0.5)"
