"""Paths, errors and small helpers of the lab's programs."""

import ctypes
import os
import signal
import subprocess
import threading
from pathlib import Path

LAB = Path(__file__).resolve().parent
CACHE = Path(
    os.environ.get("NEARSIDE_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nearside"
)


class LabError(Exception):
    """The lab cannot carry out a request; the message says why."""


def end_with_parent():
    """In the child, before exec: asks the kernel to end it, by SIGTERM, when this program ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def replace(path, text):
    """Writes a file at once: readers, and writers of the same, find the old text or all of the
    new."""
    partial = path.with_name(f"{path.name}.{threading.get_ident()}")
    partial.write_text(text)
    partial.rename(path)


def find_kernel(name):
    which = ["--version", name] if name not in ("newest", "oldest") else []
    which = ["--oldest"] if name == "oldest" else which
    found = subprocess.run([LAB / "kernel", *which], stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode:
        raise LabError("no kernel")
    return found.stdout.strip()
