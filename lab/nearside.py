"""The product's own program, which reads machine files for the lab."""

import json
import os
import subprocess
import sys
from pathlib import Path

from common import LAB, LabError

TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or LAB.parent / "target")

# Sources that decide how a machine file is read and shown.
SOURCES = (
    "crates/topology/src/machine_file.rs",
    "crates/topology/src/machine_file/costs.rs",
    "crates/topology/src/machine_file/routes.rs",
    "crates/topology/src/toml_file.rs",
    "crates/nearside/src/report/topology_json.rs",
)

REBUILD = "cargo build --package nearside"


def use(program):
    """Has this process, and the lab's programs that it starts, ask `program`."""
    os.environ["NEARSIDE_BIN"] = str(program)


def modified_ns(path):
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def built(target, sources):
    """The newest build in `target`, unless a source is newer."""
    builds = [target / profile / "nearside" for profile in ("release", "debug")]
    newest = max(builds, key=modified_ns)
    return newest if modified_ns(newest) > max(map(modified_ns, sources)) else None


def build():
    """Builds the program as tests have it. Cargo's messages go to standard error."""
    print(f"lab: building nearside, which reads machine files ({REBUILD})", file=sys.stderr)
    command = [*REBUILD.split(), "--message-format=json-render-diagnostics"]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=False, cwd=LAB.parent
        )
    except OSError as error:
        raise LabError(
            f"machine files are read by nearside, which is not built, and cargo cannot be run: "
            f"{error.strerror}; run: scripts/install build"
        ) from None
    if done.returncode:
        raise LabError(f"machine files are read by nearside, which does not build; see: {REBUILD}")
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return Path(next(each["executable"] for each in messages if each.get("executable")))


def program():
    """The program that NEARSIDE_BIN names, else the newest build, else a new build."""
    if named := os.environ.get("NEARSIDE_BIN"):
        return Path(named)
    return built(TARGET, [LAB.parent / source for source in SOURCES]) or build()


def topology(path):
    """The answer of `nearside topology` on the machine file at `path`."""
    asked = program()
    command = [asked, "topology", "--machine", path, "--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise LabError(f"cannot run {asked}: {error.strerror}; build it: {REBUILD}") from None
    if done.returncode:
        raise LabError(done.stderr.strip().removeprefix("nearside: "))
    try:
        answer = json.loads(done.stdout)
        answer["machine_file"]["routes"]
    except (ValueError, LookupError, TypeError):
        raise LabError(
            f"{asked} does not show a machine file's costs: another version; build it: {REBUILD}"
        ) from None
    return answer
