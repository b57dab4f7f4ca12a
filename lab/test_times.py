#!/usr/bin/env python3
"""Durations of tests, on stable Rust: from the times at which libtest prints their results.

    lab/test_times.py run EXECUTABLE [ARGUMENT...]    a test executable (cargo's `runner`)
    lab/test_times.py time NAME -- COMMAND...         any command, as one test
    lab/test_times.py show [N]                        the N slowest tests (default 10)

All of them use the file that the environment variable NEARSIDE_TEST_TIMES names; without it, `run`
and `time` only run. The exit code is that of the command; 1 nothing to show; 2 usage."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "NEARSIDE_TEST_TIMES"
RESULT = re.compile(rb"^test (\S+)(?: - should panic)? \.\.\. .*?(ok|FAILED|ignored.*)$")
ONE_THREAD = "--test-threads=1"


class Timer:
    """Durations of one executable's tests. libtest starts its tests in the order of its list, the
    next one whenever one ends; so each result tells when another test started."""

    def __init__(self, order=(), threads=1, now_s=0.0):
        self.waiting, self.started, self.now_s = list(order), {}, now_s
        for _ in range(threads):
            self.start_next(now_s)

    def start_next(self, now_s):
        if self.waiting:
            self.started[self.waiting.pop(0)] = now_s

    def ended(self, name, now_s):
        """Seconds of the test that ended now. Of a test beyond the list, since the last result."""
        begin_s = self.started.pop(name, self.now_s)
        self.now_s = now_s
        self.start_next(now_s)
        return now_s - begin_s


class Lines:
    """Takes libtest's output in pieces and keeps the duration of each test in it."""

    def __init__(self, timer, now_s):
        self.timer, self.rest, self.durations = timer, b"", []
        timer.now_s = now_s

    def take(self, piece, now_s):
        *lines, self.rest = (self.rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"running "):
                self.timer.now_s = now_s  # the guest has booted
            if found := RESULT.match(line.rstrip(b"\r")):
                name = found[1].decode(errors="replace")
                self.durations.append((self.timer.ended(name, now_s), name))


def keep(durations, prefix):
    """Adds durations to the file. Several programs may do so at a time."""
    file = os.environ.get(VARIABLE)
    if file and durations:
        text = "".join(f"{seconds:.3f}\t{prefix}{name}\n" for seconds, name in durations)
        with open(file, "a") as kept:
            kept.write(text)


def slowest(text, count):
    rows = (line.split("\t", 1) for line in text.splitlines() if "\t" in line)
    return sorted(((float(seconds), name) for seconds, name in rows), reverse=True)[:count]


def show(count):
    file = Path(os.environ.get(VARIABLE, ""))
    rows = slowest(file.read_text() if file.is_file() else "", count)
    if not rows:
        sys.exit("lab/test_times.py: no durations were recorded")
    print(f"the {len(rows)} slowest tests:")
    for seconds, name in rows:
        print(f"{seconds:8.1f} s  {name}")


def threads_of(arguments):
    """As libtest chooses them."""
    for number, argument in enumerate(arguments):
        if argument.startswith("--test-threads="):
            return int(argument.partition("=")[2])
        if argument == "--test-threads":
            return int(arguments[number + 1])
    return int(os.environ.get("RUST_TEST_THREADS") or len(os.sched_getaffinity(0)))


def order_of(executable, arguments):
    """Names of the executable's tests in the order in which libtest starts them."""
    command = [executable, *arguments, "--list", "--format=terse"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    suffix = ": test"
    return [line.removesuffix(suffix) for line in listed.splitlines() if line.endswith(suffix)]


def is_libtest(executable):
    """Whether cargo built it as a test; a documentation test, which rustdoc built, has no list."""
    return Path(executable).parent.name == "deps"


def run(executable, arguments):
    if VARIABLE not in os.environ or not is_libtest(executable):
        os.execv(executable, [executable, *arguments])
    order, threads = order_of(executable, arguments), threads_of(arguments)
    begin_s = time.monotonic()
    lines = Lines(Timer(order, threads, begin_s), begin_s)
    child = subprocess.Popen([executable, *arguments], stdout=subprocess.PIPE)
    while piece := os.read(child.stdout.fileno(), 65536):
        lines.take(piece, time.monotonic())
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    keep(lines.durations, f"{Path(executable).name.rpartition('-')[0]}: ")
    code = child.wait()
    return code if code >= 0 else 128 - code


def time_command(name, command):
    begin_s = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    keep([(time.monotonic() - begin_s, name)], "")
    return code if code >= 0 else 128 - code


def main(words):
    match words:
        case ["run", executable, *arguments]:
            return run(executable, arguments)
        case ["time", name, "--", program, *arguments]:
            return time_command(name, [program, *arguments])
        case ["show"]:
            return show(10)
        case ["show", count] if count.isdigit():
            return show(int(count))
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
