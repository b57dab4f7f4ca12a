"""Guests under modelled time: boots one, shows how far it is, and keeps the plugin's counters."""

import contextlib
import io
import json
import os
import shlex
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import machines
import modelled
import xen
from common import LabError, find_kernel
from guest_process import (
    EXIT_HANGS,
    EXIT_LAB_FAILED,
    EXIT_TIMEOUT,
    Interrupted,
    new_run,
    run_batch,
    say,
    show_last_words,
    show_nothing,
)
from qemu_machine import machine_arguments


def clear_line():
    print("\r\033[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def live_summary(now):
    """Shows on a terminal, in a line of its own, how far the guest's time has come and which part
    of its memory's lines was local since the line before. A file says both. Yields what takes the
    line away."""
    if not sys.stderr.isatty():
        yield show_nothing
        return
    started, ended = time.monotonic(), threading.Event()
    shown = [0, 0]

    def show():
        while not ended.wait(1):
            with contextlib.suppress(OSError, ValueError):
                now_ns, *lines = map(int, now.read_text().split())
                modelled_s, host_s = now_ns / 1e9, time.monotonic() - started
                rate = f", {host_s / modelled_s:.0f} for each" if modelled_s else ""
                local, remote = (
                    count - earlier for count, earlier in zip(lines, shown, strict=True)
                )
                share = (
                    f"; {100 * local / (local + remote):.0f} % of lines local"
                    if local + remote
                    else ""
                )
                shown[:] = lines
                line = f"lab/run: {modelled_s:.3f} s modelled in {host_s:.0f} s of the host"
                line += f"{rate}{share}"
                print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        yield clear_line
    finally:
        ended.set()
        shower.join()
        clear_line()


def check_counters(wanted):
    """Ends where they cannot be kept: not to be found out when the guest has run."""
    if os.path.isdir(wanted) or os.path.exists(wanted) and not os.access(wanted, os.W_OK):
        raise LabError(f"--counters {wanted}: not a file that can be written")
    if not os.path.exists(wanted):
        try:
            tempfile.TemporaryFile(dir=Path(wanted).parent).close()  # leaves nothing behind
        except OSError as error:
            raise LabError(f"--counters {wanted}: {error.strerror}") from None


def keep_counters(counters, wanted, *, ended):
    """Where they are wanted; of a guest that did not end by itself in any case."""
    if not counters.exists() or ended and not wanted:
        return
    if not wanted:
        handle, wanted = tempfile.mkstemp(prefix="lab-run.", suffix=".counters")
        os.close(handle)
        say(f"the guest's counters so far are in {wanted}")
    try:
        Path(wanted).write_bytes(counters.read_bytes())  # into a pipe, too
    except OSError as error:
        raise LabError(f"--counters {wanted}: {error.strerror}") from None


def run_modelled(options):
    """A guest under modelled time. It has no disk: those run in the host's time."""
    machine = machines.load(options.model)
    modelled.check_host(machine)
    if options.counters:
        check_counters(options.counters)
    vars(options).update(machine.run_options())
    kernel = find_kernel(options.kernel)
    qemu, environment = modelled.find_qemu()
    plugin = modelled.build_plugin()
    domains = xen.domains_of(options.command) if options.xen else []
    printed = io.BytesIO() if options.xen else sys.stdout.buffer
    run, _held = new_run()
    try:
        (run / "kernel").write_bytes(modelled.uncompressed(kernel))
        if options.xen:
            xen.build(run, options, Path.cwd().resolve(), kernel, domains)
        else:
            modelled.build_initramfs(run / "initramfs", options, Path.cwd().resolve())
        how = xen if options.xen else modelled
        command = how.qemu_command(
            qemu, options, machine, machine_arguments(options)[0], plugin, run / "kernel", run
        )
        if options.dry_run:
            print(shlex.join(command))
            return 0
        started = time.monotonic()
        # The plugin's watchdog knows better than the clock whether a guest comes up, so it counts
        # as up at once.
        with live_summary(run / "now") as before_output:
            try:
                ended, _, code = run_batch(
                    command, environment, options.timeout or None, run, before_output, printed
                )
            except Interrupted:
                keep_counters(run / "counters", options.counters, ended=False)
                raise
        seconds = time.monotonic() - started
        status = (run / "status").read_text().strip() if (run / "status").exists() else ""
        keep_counters(run / "counters", options.counters, ended=status.isdigit())
        if options.xen:
            said = printed.getvalue().decode(errors="replace")
            print(
                said
                if status != "0"
                else json.dumps(xen.result_of(said, options.command[2], domains))
            )
        if status.isdigit():
            if options.verbose:
                say(f"the guest ran {seconds:.1f} s of the host")
            return int(status)
        show_last_words(run, options.verbose)
        if not ended:
            say(f"timeout: CMD still ran after {seconds:.0f} s; stopped")
            return EXIT_TIMEOUT
        hangs = code in (modelled.EXIT_WATCHDOG, modelled.EXIT_TIME_LIMIT)
        say(
            "the guest hangs; it was stopped"
            if hangs
            else f"the guest died (QEMU's exit status is {code})"
        )
        return EXIT_HANGS if hangs else EXIT_LAB_FAILED
    finally:
        shutil.rmtree(run, ignore_errors=True)
