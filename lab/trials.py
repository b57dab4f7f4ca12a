"""Trials of a comparison: each is a guest, which runs unless its result is there already."""

import concurrent.futures
import dataclasses
import datetime
import functools
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import identity
import machines
import modelled
import nearside
from common import LAB, LabError, end_with_parent, replace
from contenders import BOUNDS, FASTER, naive_pins, oracle_pins
from tables import FIGURES, mean_domain_ms

# The load of a dbench client: so many lines of Debian's (as many as fill 8 MB), so many times.
DBENCH_LINES, DBENCH_TIMES = 200, 50
DBENCH_END = 'Rename "\\clients\\client1\\nothing" "\\clients\\client1\\nowhere" NT_STATUS_OK'

# Host seconds for one guest, before it counts as stuck.
GUEST_SECONDS = 1800

# The plugin's marks around the measured time.
MARK_BEGIN, MARK_END = 1, 2

# Errors of results or counters that are cut off.
UNREADABLE = (
    LabError,
    OSError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


def say(message):
    print(f"lab/compare: {message}", flush=True)


def call(*command):
    """The output of a program of the lab, which reports its own errors."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=LAB.parent)
    if done.returncode:
        raise LabError(f"{command[0]} failed")
    return done.stdout.strip()


# Where the object that puts a queue before mutexes is in the guest.
QUEUE = "/lib/libnearside_locks_preload.so"

# Programs of the guests, and their packages.
PROGRAMS = {"workloads": "nearside-workloads", "nearside": "nearside"}


def build(*names, as_tests=False):
    """Builds programs as users have them, since times include the daemon's own cost, or as the
    tests have built them. One command builds them all, so that their dependencies are built once.
    Returns paths by name."""
    say(f"building {' and '.join(names)}")
    command = ["cargo", "build", "--message-format=json-render-diagnostics"]
    # The packages of one command, and whether it has a test, decide about their dependencies'
    # features.
    command += ["--workspace", "--test", "words"] if as_tests else ["--release"]
    for name in names:
        command += [] if as_tests else ["--package", PROGRAMS[name]]
        command += ["--bin", name]
    messages = [json.loads(line) for line in call(*command).splitlines() if line.startswith("{")]
    return {m["target"]["name"]: Path(m["executable"]) for m in messages if m.get("executable")}


def build_queue(as_tests=False):
    """Builds the object that puts a queue before mutexes, and returns its path."""
    say("building nearside-locks-preload")
    command = ["cargo", "build", "--message-format=json-render-diagnostics"]
    command += ["--package", "nearside-locks-preload", *([] if as_tests else ["--release"])]
    messages = [json.loads(line) for line in call(*command).splitlines() if line.startswith("{")]
    files = [file for message in messages for file in message.get("filenames", [])]
    return next(Path(file) for file in files if file.endswith("/libnearside_locks_preload.so"))


@dataclass(frozen=True)
class Trial:
    """One guest."""

    workload: str
    machine: str
    domains: int
    contender: str
    seed: int
    # Of the guest: the same programs at another place in it, which is enough to let the kernel's
    # scheduler take another course.
    build: int = 1

    def __str__(self):
        point = f"{self.workload}, {self.domains} domains on {machines.name_of(self.machine)}"
        build = f", build {self.build}" if self.build > 1 else ""
        return f"{point}, {self.contender}, seed {self.seed}{build}"


def cache_kib(machine):
    """KiB of caches for a CPU when all are busy: its own, and its share of a node's."""
    shared = (
        machine.last_level.bytes / max(node.cpus for node in machine.nodes)
        if machine.last_level
        else 0
    )
    return int(machine.cache.bytes + shared) >> 10


class Runner:
    """Runs trials, or takes their results from earlier runs."""

    def __init__(self, results, image, as_tests=False):
        self.results, self.image, self.described, self.files = results, image, {}, identity.Files()
        self.as_tests = as_tests
        self.kernel = image.parent.name.removesuffix("-amd64")
        self.began_with = {path: self.files.digest(path) for path in identity.read_by_guests()}
        for folder in ("trials", "machines", "bin", "failed"):
            (results / folder).mkdir(exist_ok=True)
        # Of the sources that are built now: they may change while guests run.
        self.scheduler_sources = identity.scheduler()
        # Copies: a build meanwhile must not change the guests' programs. Their place is part of the
        # guest.
        self.programs = {}
        for name, built in build(*PROGRAMS, as_tests=as_tests).items():
            self.programs[name] = results / "bin" / name
            shutil.copy2(built, self.programs[name])
        nearside.use(self.programs["nearside"])
        found = modelled.find_qemu()
        self.common = [
            *identity.sources(),
            *identity.qemu_files(*found),
            identity.executable("busybox"),
            image,
        ]
        self.made_by = {
            "commit": identity.commit(),
            "qemu": identity.qemu_version(*found),
            "kernel": self.kernel,
        }

    def programs_of(self, trial):
        return self.programs if trial.build == 1 else self.copies(trial.build)

    @functools.cache
    def copies(self, build):
        """The programs of this build, by name."""
        folder = self.results / "bin" / f"build-{build}"
        folder.mkdir(exist_ok=True)
        return {
            name: Path(shutil.copy2(program, folder / name))
            for name, program in self.programs.items()
        }

    def which(self, trial):
        """The workload, as its program takes it."""
        kib = cache_kib(machines.load(trial.machine))
        return [trial.workload, "--domains", str(trial.domains), "--cache-kib", str(kib)]

    def domains(self, trial):
        which = tuple(self.which(trial))
        if which not in self.described:
            self.described[which] = json.loads(call(self.programs["workloads"], "describe", *which))
        return self.described[which]

    @functools.cache
    def queue(self):
        """The object that puts a queue before mutexes: a copy, as of the programs."""
        return Path(shutil.copy2(build_queue(self.as_tests), self.results / "bin"))

    @functools.cache
    def packages(self):
        return Path(call(LAB / "packages", "workloads"))

    def bring(self, trial):
        """The programs of others that this needs, by their place in the guest."""
        others = {}
        if trial.workload in ("hackbench", "dbench") or trial.contender == "numad":
            packages = self.packages()
        if trial.contender == "numad":
            others["/bin/numad"] = packages / "usr/bin/numad"
        if trial.contender == "queue":
            others[QUEUE] = self.queue()
        if trial.workload == "hackbench":
            others["/bin/hackbench"] = packages / "usr/bin/hackbench"
        if trial.workload == "dbench":
            others["/bin/dbench"] = packages / "usr/bin/dbench"
            others["/share/client.txt"] = self.dbench_load()
        return others

    @functools.cache
    def dbench_load(self):
        load = self.results / "bin" / "client.txt"
        lines = (
            (self.packages() / "usr/share/dbench/client.txt")
            .read_text()
            .splitlines()[:DBENCH_LINES]
        )
        replace(load, "\n".join([*lines * DBENCH_TIMES, DBENCH_END, ""]))
        return load

    def model(self, trial):
        """The machine's file; for a bound that of one on which all lines cost the same, from each
        CPU as much as its nearest or its farthest node."""
        if trial.contender not in BOUNDS:
            return machines.file(trial.machine)
        machine, pick = machines.load(trial.machine), min if trial.contender == "local" else max
        flat = [[pick(row)] * len(row) for row in machine.latency_ns]
        derived = self.results / "machines" / f"{machine.name}.{trial.contender}.toml"
        replace(
            derived,
            machines.text_of(dataclasses.replace(machine, latency_ns=flat, links=[], routes={})),
        )
        return derived

    def needs_nearside(self, trial):
        return trial.contender == "nearside"

    def guest_command(self, trial):
        machine, domains = machines.load(trial.machine), self.domains(trial)
        command = [self.programs_of(trial)["workloads"], "play", *self.which(trial)]
        if trial.contender == "xen":
            return command
        command += ["--faster", FASTER]
        match trial.contender:
            case "stock":
                return command
            case "balancing":
                return [*command, "--balancing"]
            case "nearside":
                return [*command, "--nearside", "/bin/nearside"]
            case "numad":
                return [*command, "--numad", "/bin/numad"]
            case "queue":
                return [*command, "--preload", QUEUE]
            case "pin-naive":
                pins = naive_pins(domains, machine)
            case _:  # the oracle, which binds for the bounds, too
                pins = oracle_pins(domains, machine)
        return [*command, "--pins", ",".join(map(str, pins))]

    def setting(self, trial):
        """Words before lab/run, which takes libraries along from where the loader finds them:
        dbench needs one that this machine need not have."""
        if trial.workload != "dbench":
            return ()
        return "env", f"LD_LIBRARY_PATH={self.packages() / 'usr/lib/x86_64-linux-gnu'}"

    def command(self, trial):
        command = [
            *self.setting(trial),
            LAB / "run",
            "--model",
            self.model(trial),
            "--quantum-us",
            modelled.QUANTUM_US,
        ]
        command += ["--kernel", self.kernel, "--seed", trial.seed, "--timeout", GUEST_SECONDS]
        if self.needs_nearside(trial):
            command += ["--with", f"{self.programs_of(trial)['nearside']}=/bin/nearside"]
        if trial.contender == "xen":
            command += ["--xen"]
        for place, program in self.bring(trial).items():
            command += ["--with", f"{program}={place}"]
        return [str(word) for word in [*command, "--", *self.guest_command(trial)]]

    def depends_on(self, trial):
        """Files, by their contents."""
        own = self.programs_of(trial)
        programs = [own["workloads"], *self.bring(trial).values()]
        programs += [own["nearside"]] if self.needs_nearside(trial) else []
        loaded = [
            library
            for program in programs
            for library in identity.libraries(program, self.setting(trial))
        ]
        return [
            *self.common,
            *programs,
            *loaded,
            *(identity.xen_files(self.image) if trial.contender == "xen" else []),
        ]

    def identity(self, trial):
        """Of all that a result depends on: where some of it changes, the result is another one."""
        contents = map(self.files.digest, self.depends_on(trial))
        emulated = identity.emulated(machines.load(str(self.model(trial))))
        return identity.digest(*contents, shlex.join(emulated), shlex.join(self.command(trial)))

    def refuse_changes(self):
        """Refuses to go on after an edit: guests before and after it differ."""
        changed = [
            path
            for path, at_first in self.began_with.items()
            if self.files.digest(path) != at_first
        ]
        if changed:
            names = ", ".join(str(path.relative_to(LAB.parent)) for path in changed)
            raise LabError(
                f"{names} changed while guests ran. Results from before the change are kept, "
                "those from after it are not. Start again."
            )

    def file(self, trial):
        """Two contenders that do the same share a result."""
        return self.results / "trials" / f"{self.identity(trial)}.json"

    def found(self, trial):
        file = self.file(trial)
        try:
            return readable(json.loads(file.read_text()))
        except UNREADABLE:
            return None

    def run(self, trial):
        self.refuse_changes()
        command, file = self.command(trial), self.file(trial)
        with tempfile.TemporaryDirectory(prefix="lab-compare.") as folder:
            counters = Path(folder) / "counters"
            at = command.index("--")
            actual = [*command[:at], "--counters", str(counters), *command[at:]]
            started = time.monotonic()
            done = subprocess.run(
                actual,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
                cwd=LAB.parent,
                preexec_fn=end_with_parent,
            )
            seconds = time.monotonic() - started
            self.refuse_changes()
            if self.file(trial) != file:
                what = "a program, a library or the machine changed while it ran"
                raise LabError(f"{trial}: {what}. It is not kept. Start again.")
            try:
                found = result_of(done.returncode, done.stdout, counters)
            except UNREADABLE as error:
                self.tell_failed(trial, error, done.stdout, counters)
                return None
        ended = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        result = {
            "trial": str(trial),
            "command": shlex.join(command),
            "ended": ended,
            **self.made_by,
            **({"scheduler_sources": self.scheduler_sources} if self.needs_nearside(trial) else {}),
            "host_s": round(seconds, 1),
            **found,
        }
        replace(file, json.dumps(result) + "\n")
        self.failed(trial).unlink(missing_ok=True)
        return result

    def failed(self, trial):
        """The file of a failed guest's counters."""
        point = f"{trial.workload}.{machines.name_of(trial.machine)}.{trial.domains}-domains"
        build = f".build-{trial.build}" if trial.build > 1 else ""
        name = f"{point}.{trial.contender}.seed-{trial.seed}{build}.counters"
        return self.results / "failed" / name

    def tell_failed(self, trial, error, printed, counters):
        why, kept = (
            str(error)
            if isinstance(error, LabError)
            else f"its result or its counters cannot be read: {error!r}",
            "",
        )
        if counters.exists():
            shutil.copy(counters, self.failed(trial))
            kept = f"; its counters so far are in {self.failed(trial)}"
        say(f"{trial}: failed: {why}{kept}; it printed:\n{printed}")


def result_of(code, printed, counters):
    """The result of a guest, if all tables can show it. Raises one of UNREADABLE."""
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
    for figure in (
        lambda result: float(result["total_ms"]),
        mean_domain_ms,
        *(figure for _, figure, _ in FIGURES),
    ):
        figure(result)
    return result


# -- many of them --


class Progress:
    """The progress of the runs, and the remaining time."""

    def __init__(self, runs, jobs):
        self.runs, self.jobs, self.done, self.host_s, self.lock = (
            runs,
            jobs,
            0,
            0.0,
            threading.Lock(),
        )

    def add(self, trial, result):
        with self.lock:
            self.done += 1
            if not result:
                return
            self.host_s += result["host_s"]
            left_s = self.host_s / self.done * (self.runs - self.done) / self.jobs
            left = f"; about {math.ceil(left_s / 60)} min left" if self.done < self.runs else ""
            say(
                f"{self.done} of {self.runs}: {trial}: {result['total_ms']:.0f} ms "
                f"in {result['host_s']:.0f} s of the host{left}"
            )


def run_all(runner, trials, jobs):
    """Results by trial. Trials that are the same run once."""
    results = {trial: runner.found(trial) for trial in trials}
    missing = {}
    for trial in trials:
        if not results[trial]:
            missing.setdefault(runner.file(trial), trial)
    say(
        f"{len(trials)} trials, {sum(map(bool, results.values()))} of them found, "
        f"{len(missing)} to run, {jobs} at a time"
    )
    progress = Progress(len(missing), jobs)

    def one(trial):
        result = runner.run(trial)
        progress.add(trial, result)
        return result

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        ran = {}
        try:
            for file, result in zip(missing, pool.map(one, missing.values()), strict=True):
                ran[file] = result
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {trial: result or ran.get(runner.file(trial)) for trial, result in results.items()}


def available_bytes():
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def jobs_for(names):
    """So many guests on these machines at a time as there are CPUs, if all of them find memory."""
    largest = max(machines.load(name).memory_bytes() for name in set(names))
    return max(1, min(os.cpu_count(), available_bytes() // modelled.host_bytes(largest)))
