"""A guest as a process of the host: its folder, its output, its end."""

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from common import CACHE

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# A guest that has not come up by then never will (see Traps in README.md) and is started anew, up
# to BOOTS times in all. The longest and the shortest such time: a slow, busy machine takes a
# minute.
BOOT_SECONDS, LEAST_BOOT_SECONDS = 600, 150
BOOTS = 3

# Seconds that QEMU gets to end by itself after SIGTERM.
LAST_WORDS_SECONDS = 5

EXIT_HANGS = 123
EXIT_TIMEOUT = 124
EXIT_LAB_FAILED = 125


def say(message):
    print(f"lab/run: {message}", file=sys.stderr, flush=True)


def die_with_parent():
    """In the child, before exec: virtme-run ends when lab/run does, however that ends. lab/qemu
    does the same."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def copy_stream(source, target, before):
    """Hands on bytes as they arrive, each time after `before`."""
    while chunk := os.read(source.fileno(), 65536):
        before()
        try:
            target.write(chunk)
            target.flush()
        except BrokenPipeError:
            return


class Interrupted(Exception):
    """A signal asked lab/run to stop."""


def interrupt(number, _frame):
    # Once: Ctrl-C may arrive together with the caller's end, and must not interrupt the cleaning
    # up.
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(number)


def stop(child):
    """Ends virtme-run and QEMU for certain: they share a process group of their own. A running QEMU
    may write a last report first."""
    with contextlib.suppress(ProcessLookupError):
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
            ends_within(child, LAST_WORDS_SECONDS)
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def ends_within(child, seconds):
    try:
        child.wait(seconds)
        return True
    except subprocess.TimeoutExpired:
        return False


def show_nothing():
    """There is no live summary."""


def boot_seconds(timeout):
    """Seconds that a guest gets to come up, of `timeout` seconds for all its boots and its command
    (None: no limit)."""
    if timeout is None:
        return BOOT_SECONDS
    return min(timeout, max(LEAST_BOOT_SECONDS, min(BOOT_SECONDS, timeout / BOOTS)))


def run_batch(command, environment, timeout, booted, before_output=show_nothing, output=None):
    """Runs the guest with its output passed through, to `output` where that is given. Whether it
    ended by itself, and whether it came up (then `booted` exists): it is stopped after `timeout`,
    or where it has not come up after `boot_seconds`. Last, QEMU's exit status."""
    # QEMU opens its output through /proc/self/fd, which works for pipes but not for every kind of
    # descriptor the caller may have given us (sockets, for one). So it always gets pipes.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    pumps = [
        threading.Thread(target=copy_stream, args=(*pair, before_output), daemon=True)
        for pair in ((child.stdout, output or sys.stdout.buffer), (child.stderr, sys.stderr.buffer))
    ]
    for pump in pumps:
        pump.start()
    try:
        boot = boot_seconds(timeout)
        ended = ends_within(child, boot)
        came_up = booted.exists()
        if not ended and came_up:
            ended = ends_within(child, None if timeout is None else timeout - boot)
    finally:
        stop(child)
        for pump in pumps:
            pump.join(timeout=5)
    return ended, came_up, child.returncode


def show_last_words(run, verbose):
    """Shows the end of the guest's console."""
    log = run / "console.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    say("its console ends with" if lines else "its console is empty")
    for line in lines[-40:]:
        print(f"  {line}", file=sys.stderr)
    if not verbose:
        say("see more with -v")


def is_held(folder):
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def new_run():
    """A folder for this run, and the descriptor that holds it. Removes folders without a holder,
    which a SIGKILL leaves."""
    runs = CACHE / "guests"
    runs.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "guests.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # so that none is swept away before it is held
        for left in runs.iterdir():
            with contextlib.suppress(FileNotFoundError):  # its owner may be removing it, too
                if not is_held(left):
                    shutil.rmtree(left, ignore_errors=True)
        run = Path(tempfile.mkdtemp(dir=runs)).resolve()
        descriptor = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return run, descriptor
