"""Fake guests and results for tests of comparisons, and programs as modules."""

import importlib.util
import sys
import threading
from importlib.machinery import SourceFileLoader

from common import LAB


def load_program(name):
    """A program of the lab, as a module."""
    loader = SourceFileLoader(name, str(LAB / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


def result(total_ms, busy_ms=(0, 0), fetched=((0, 0), (0, 0))):
    """Of a guest of two CPUs on two nodes, both of which were halted long before the first mark."""

    def mark(busy, lines, now_ns):
        zeros = [0, 0]
        vcpus = [
            {
                "node": cpu,
                "now_ns": now_ns,
                "idle_ns": now_ns - busy[cpu] * 1e6,
                "stall_ns": busy[cpu] * 5e5,
                "fetched": lines[cpu],
                "code_fetched": zeros,
                "cache_to_cache": zeros,
            }
            for cpu in (0, 1)
        ]
        return {"machine_ns": 1e9 + total_ms * 1e6 if any(busy) else 1e9, "vcpus": vcpus}

    begin, end = mark((0, 0), ((0, 0), (0, 0)), 2e8), mark(busy_ms, fetched, 1e9 + total_ms * 1e6)
    made = {
        "ended": "2026-11-23T20:00:00+00:00",
        "commit": "1234567",
        "kernel": "7.1",
        "qemu": "10.0",
        "host_s": 1,
        "command": "# run",
    }
    return {
        **made,
        "total_ms": total_ms,
        "domains": [{"time_ms": total_ms}, {"time_ms": total_ms / 2}],
        "marks": [begin, end],
    }


class FakeRunner:
    """Results by contender; `pin-oracle` binds like `pin-naive`."""

    def __init__(self, found=()):
        known = {**result(100, (1, 1)), "command": "# known"}
        self.known, self.ran, self.lock = dict.fromkeys(found, known), [], threading.Lock()

    def file(self, trial):
        return trial.contender.replace("oracle", "naive")

    def found(self, trial):
        return self.known.get(self.file(trial))

    def run(self, trial):
        with self.lock:
            self.ran.append(self.file(trial))
        made = (
            result({"stock": 150, "pin-naive": 100}[self.file(trial)], (1, 1))
            if self.file(trial) != "nearside"
            else None
        )
        return made and {**made, "command": f"# {trial.contender}"}
