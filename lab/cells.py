"""The cells of a comparison: each a guest, which is run unless an earlier run left what it found."""

import concurrent.futures
import ctypes
import dataclasses
import datetime
import functools
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import identity
import machines
import modelled
from common import LAB, LabError, replace
from contenders import BOUNDS, FASTER, naive_pins, oracle_pins
from tables import FIGURES, mean_domain_ms

# The load of a dbench client: so many lines of Debian's (as many as fill 8 MB), so many times.
DBENCH_LINES, DBENCH_TIMES = 200, 50
DBENCH_END = 'Rename "\\clients\\client1\\nothing" "\\clients\\client1\\nowhere" NT_STATUS_OK'

# Host seconds for one guest, before it counts as stuck.
GUEST_SECONDS = 1800

# What the plugin's marks enclose.
MARK_BEGIN, MARK_END = 1, 2

# What comes of a result or counters that somebody's end has cut off.
UNREADABLE = (LabError, OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def say(message):
    print(f"lab/compare: {message}", flush=True)


def end_with_parent():
    """In the child, before exec: lab/run ends, in its own orderly way, when lab/compare does."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def call(*command):
    """What a program of the lab prints; it says itself what goes wrong."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=LAB.parent)
    if done.returncode:
        raise LabError(f"{command[0]} failed")
    return done.stdout.strip()


def build(package, binary):
    """As users have it: what the daemon itself costs is in the times."""
    say(f"building {binary}")
    command = ["cargo", "build", "--release", "--package", package, "--bin", binary, "--message-format=json-render-diagnostics"]
    messages = [json.loads(line) for line in call(*command).splitlines() if line.startswith("{")]
    return Path(next(m["executable"] for m in messages if m.get("executable")))


@dataclass(frozen=True)
class Cell:
    """One guest."""

    workload: str
    machine: str
    domains: int
    contender: str
    seed: int

    def __str__(self):
        return f"{self.workload}, {self.domains} domains on {machines.name_of(self.machine)}, {self.contender}, seed {self.seed}"


def cache_kib(machine):
    """What a CPU has of caches where all are busy: its own, and its share of a node's."""
    shared = machine.last_level.bytes / max(node.cpus for node in machine.nodes) if machine.last_level else 0
    return int(machine.cache.bytes + shared) >> 10


class Runner:
    """Runs cells, or takes what an earlier run found."""

    def __init__(self, results, image):
        self.results, self.image, self.described, self.files = results, image, {}, identity.Files()
        self.kernel = image.parent.name.removesuffix("-amd64")
        self.began_with = {path: self.files.digest(path) for path in identity.read_meanwhile()}
        for folder in ("cells", "machines", "bin", "failed"):
            (results / folder).mkdir(exist_ok=True)
        # A build meanwhile must not change what the guests run; where it lies is part of what they see.
        self.programs = {}
        for package, binary in (("nearside-workloads", "workloads"), ("nearside", "nearside")):
            self.programs[binary] = results / "bin" / binary
            shutil.copy2(build(package, binary), self.programs[binary])
        found = modelled.find_qemu()
        self.common = [*identity.sources(), *identity.qemu_files(*found), identity.executable("busybox"), image]
        self.made_by = {"commit": identity.commit(), "qemu": identity.qemu_version(*found), "kernel": self.kernel}

    def which(self, cell):
        """The workload, as its program takes it."""
        kib = cache_kib(machines.load(cell.machine))
        return [cell.workload, "--domains", str(cell.domains), "--cache-kib", str(kib)]

    def domains(self, cell):
        which = tuple(self.which(cell))
        if which not in self.described:
            self.described[which] = json.loads(call(self.programs["workloads"], "describe", *which))
        return self.described[which]

    @functools.cache
    def packages(self):
        return Path(call(LAB / "packages", "workloads"))

    def bring(self, cell):
        """The programs of others that this needs, by their place in the guest."""
        others = {}
        if cell.workload in ("hackbench", "dbench") or cell.contender == "numad":
            packages = self.packages()
        if cell.contender == "numad":
            others["/bin/numad"] = packages / "usr/bin/numad"
        if cell.workload == "hackbench":
            others["/bin/hackbench"] = packages / "usr/bin/hackbench"
        if cell.workload == "dbench":
            others["/bin/dbench"] = packages / "usr/bin/dbench"
            others["/share/client.txt"] = self.dbench_load()
        return others

    @functools.cache
    def dbench_load(self):
        load = self.results / "bin" / "client.txt"
        lines = (self.packages() / "usr/share/dbench/client.txt").read_text().splitlines()[:DBENCH_LINES]
        replace(load, "\n".join([*lines * DBENCH_TIMES, DBENCH_END, ""]))
        return load

    def model(self, cell):
        """The machine's file; for a bound that of one on which all lines cost the same, from each CPU as much as its nearest or its
        farthest node."""
        if cell.contender not in BOUNDS:
            return machines.file(cell.machine)
        machine, pick = machines.load(cell.machine), min if cell.contender == "local" else max
        flat = [[pick(row)] * len(row) for row in machine.latency_ns]
        derived = self.results / "machines" / f"{machine.name}.{cell.contender}.toml"
        replace(derived, machines.text_of(dataclasses.replace(machine, latency_ns=flat, links=[], routes={})))
        return derived

    def guest_command(self, cell):
        machine, domains = machines.load(cell.machine), self.domains(cell)
        command = [self.programs["workloads"], "play", *self.which(cell)]
        if cell.contender == "xen":
            return command
        command += ["--faster", FASTER]
        match cell.contender:
            case "stock":
                return command
            case "balancing":
                return [*command, "--balancing"]
            case "nearside":
                return [*command, "--nearside", "/bin/nearside"]
            case "numad":
                return [*command, "--numad", "/bin/numad"]
            case "pin-naive":
                pins = naive_pins(domains, machine)
            case _:  # the oracle, which binds for the bounds, too
                pins = oracle_pins(domains, machine)
        return [*command, "--pins", ",".join(map(str, pins))]

    def setting(self, cell):
        """What stands before lab/run, which takes libraries along from where the loader finds them: dbench needs one that this
        machine need not have."""
        if cell.workload != "dbench":
            return ()
        return "env", f"LD_LIBRARY_PATH={self.packages() / 'usr/lib/x86_64-linux-gnu'}"

    def command(self, cell):
        command = [*self.setting(cell), LAB / "run", "--model", self.model(cell), "--quantum-us", modelled.QUANTUM_US]
        command += ["--kernel", self.kernel, "--seed", cell.seed, "--timeout", GUEST_SECONDS]
        if cell.contender == "nearside":
            command += ["--with", f"{self.programs['nearside']}=/bin/nearside"]
        if cell.contender == "xen":
            command += ["--xen"]
        for place, program in self.bring(cell).items():
            command += ["--with", f"{program}={place}"]
        return [str(word) for word in [*command, "--", *self.guest_command(cell)]]

    def depends_on(self, cell):
        """Files, by their contents."""
        programs = [self.programs["workloads"], *self.bring(cell).values()]
        programs += [self.programs["nearside"]] if cell.contender == "nearside" else []
        loaded = [library for program in programs for library in identity.libraries(program, self.setting(cell))]
        return [*self.common, *programs, *loaded, *(identity.xen_files(self.image) if cell.contender == "xen" else [])]

    def identity(self, cell):
        """Of all that a result depends on: where some of it changes, the result is another one."""
        contents = map(self.files.digest, self.depends_on(cell))
        emulated = identity.emulated(machines.load(str(self.model(cell))))
        return identity.digest(*contents, shlex.join(emulated), shlex.join(self.command(cell)))

    def refuse_changes(self):
        """Guests that somebody's edit made different from those before must not pass for the same."""
        changed = [path for path, at_first in self.began_with.items() if self.files.digest(path) != at_first]
        if changed:
            names = ", ".join(str(path.relative_to(LAB.parent)) for path in changed)
            raise LabError(f"{names} changed while guests ran. What ran meanwhile is not kept; what ran before is. Start again.")

    def file(self, cell):
        """Two contenders that do the same share a result."""
        return self.results / "cells" / f"{self.identity(cell)}.json"

    def found(self, cell):
        file = self.file(cell)
        try:
            return readable(json.loads(file.read_text()))
        except UNREADABLE:
            return None

    def run(self, cell):
        self.refuse_changes()
        command, file = self.command(cell), self.file(cell)
        with tempfile.TemporaryDirectory(prefix="lab-compare.") as folder:
            counters = Path(folder) / "counters"
            at = command.index("--")
            actual = [*command[:at], "--counters", str(counters), *command[at:]]
            started = time.monotonic()
            done = subprocess.run(actual, stdout=subprocess.PIPE, text=True, check=False, cwd=LAB.parent, preexec_fn=end_with_parent)
            seconds = time.monotonic() - started
            self.refuse_changes()
            if self.file(cell) != file:
                what = "what it depends on (a program, a library or the machine) changed while it ran"
                raise LabError(f"{cell}: {what}. It is not kept. Start again.")
            try:
                found = result_of(done.returncode, done.stdout, counters)
            except UNREADABLE as error:
                self.tell_failed(cell, error, done.stdout, counters)
                return None
        ended = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        result = {"cell": str(cell), "command": shlex.join(command), "ended": ended, **self.made_by, "host_s": round(seconds, 1), **found}
        replace(file, json.dumps(result) + "\n")
        self.failed(cell).unlink(missing_ok=True)
        return result

    def failed(self, cell):
        """Where the counters of a guest are that failed."""
        name = f"{cell.workload}.{machines.name_of(cell.machine)}.{cell.domains}-domains.{cell.contender}.seed-{cell.seed}.counters"
        return self.results / "failed" / name

    def tell_failed(self, cell, error, printed, counters):
        why, kept = str(error) if isinstance(error, LabError) else f"its result or its counters cannot be read: {error!r}", ""
        if counters.exists():
            shutil.copy(counters, self.failed(cell))
            kept = f"; its counters so far are in {self.failed(cell)}"
        say(f"{cell}: failed: {why}{kept}; it printed:\n{printed}")


def result_of(code, printed, counters):
    """What a guest found, all of which can be shown. Raises one of UNREADABLE."""
    if code:
        raise LabError(f"exit code {code}")
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    if not lines:
        raise LabError("it printed no result")
    return readable({**json.loads(lines[-1]), "marks": marks_of(counters.read_text())})


def marks_of(text):
    """The plugin's reports at the beginning and at the end."""
    marks = {}
    for entry in map(json.loads, text.splitlines()):
        if entry["what"] == "mark":
            marks[entry["id"]] = entry
    if set(marks) != {MARK_BEGIN, MARK_END}:
        raise LabError("the guest did not make its marks")
    return [marks[MARK_BEGIN], marks[MARK_END]]


def readable(result):
    """The same, if all has come out of it that tables show."""
    for figure in (lambda result: float(result["total_ms"]), mean_domain_ms, *(figure for _, figure, _ in FIGURES)):
        figure(result)
    return result


# -- many of them -----------------------------------------------------------------------------------------------------


class Progress:
    """How far it is, and how long the rest will take."""

    def __init__(self, runs, jobs):
        self.runs, self.jobs, self.done, self.host_s, self.lock = runs, jobs, 0, 0.0, threading.Lock()

    def add(self, cell, result):
        with self.lock:
            self.done += 1
            if not result:
                return
            self.host_s += result["host_s"]
            left_s = self.host_s / self.done * (self.runs - self.done) / self.jobs
            left = f"; about {math.ceil(left_s / 60)} min left" if self.done < self.runs else ""
            say(f"{self.done} of {self.runs}: {cell}: {result['total_ms']:.0f} ms in {result['host_s']:.0f} s of the host{left}")


def run_all(runner, cells, jobs):
    """Results by cell. Cells that are the same run once."""
    results = {cell: runner.found(cell) for cell in cells}
    missing = {}
    for cell in cells:
        if not results[cell]:
            missing.setdefault(runner.file(cell), cell)
    say(f"{len(cells)} cells, {sum(map(bool, results.values()))} of them found, {len(missing)} to run, {jobs} at a time")
    progress = Progress(len(missing), jobs)

    def one(cell):
        result = runner.run(cell)
        progress.add(cell, result)
        return result

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        ran = {}
        try:
            for file, result in zip(missing, pool.map(one, missing.values()), strict=True):
                ran[file] = result
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {cell: result or ran.get(runner.file(cell)) for cell, result in results.items()}


def available_bytes():
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def jobs_for(names):
    """So many guests on these machines at a time as there are CPUs, if all of them find memory."""
    largest = max(machines.load(name).memory_bytes() for name in set(names))
    return max(1, min(os.cpu_count(), available_bytes() // modelled.host_bytes(largest)))
