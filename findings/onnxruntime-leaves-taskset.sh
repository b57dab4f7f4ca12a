#!/usr/bin/env bash
# ONNX Runtime 1.22.1 (from PyPI), 2026-12-01.
#
# With the default number of threads, ONNX Runtime makes one for each core of the host but the
# first, whatever CPUs the process may use, and binds each to its core. So in a process that taskset
# has bound to one CPU, threads run on the others. With `intra_op_num_threads` set, threads are not
# bound and keep the process's CPUs.
#
# Consequence: CPU affinity (taskset, numactl --physcpubind, CPUAffinity= of systemd) does not keep
# inference on its CPUs or on its node. Set the number of threads, or use a cpuset, which the kernel
# holds against such calls (cpuset(7); not tried here).
# shellcheck source=findings/lib.sh
. "$(dirname "$0")/lib.sh"
python3 -m venv "$here/venv"
"$here/venv/bin/pip" --quiet --disable-pip-version-check install --only-binary :all: \
  onnxruntime==1.22.1 onnx==1.18.0 numpy==2.2.6 protobuf==6.31.1

[ "$(lscpu --parse=CORE | grep -v '^#' | sort -u | wc -l)" -gt 1 ] || {
  echo "this needs a host of two cores"
  exit 1
}
all=$(sed -n 's/^Cpus_allowed_list:\s*//p' /proc/self/status)
first=${all%%[,-]*}

cat >"$here/session.py" <<'PYTHON'
"""Whether all threads of a session that returns its input may use the CPUs of the process alone."""
import glob
import os
import sys

import onnx
import onnxruntime
from onnx import helper

own = os.sched_getaffinity(0)
value = {name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"}
node = helper.make_node("Identity", ["x"], ["y"])
graph = helper.make_graph([node], "identity", [value["x"]], [value["y"]])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[1])
session = onnxruntime.InferenceSession(
    model.SerializeToString(), options, providers=["CPUExecutionProvider"]
)
threads = [int(os.path.basename(path)) for path in glob.glob("/proc/self/task/*")]
are_inside = all(os.sched_getaffinity(thread) <= own for thread in threads)
print("threads on", "its CPUs alone" if are_inside else "other CPUs, too")
PYTHON
session() { taskset -c "$first" "$here/venv/bin/python" "$here/session.py" "$1" 2>/dev/null; }

expect "taskset -c $first, default" "threads on other CPUs, too" "$(session 0)"
expect "taskset -c $first, two threads" "threads on its CPUs alone" "$(session 2)"
