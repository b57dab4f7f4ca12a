"""Identities of the lab's results: digests of all that a guest of lab/compare depends on."""

import functools
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import initramfs
import xen
from common import LAB, LabError
from qemu_machine import machine_arguments

# QEMU's firmware that runs in the guest before its kernel.
FIRMWARE = ("bios-256k.bin", "pvh.bin", "multiboot_dma.bin")


def digest(*contents):
    total = hashlib.sha256()
    for content in contents:
        total.update(content if isinstance(content, bytes) else content.encode())
    return total.hexdigest()[:16]


class Files:
    """Digests of files, each read again only where it has changed."""

    def __init__(self):
        self.known = {}

    def digest(self, path):
        try:
            about = os.stat(path)
            version = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
            if path not in self.known or self.known[path][0] != version:
                self.known[path] = version, digest(Path(path).read_bytes())
        except OSError as error:
            raise LabError(f"{path}: {error.strerror}") from None
        return self.known[path][1]


def sources():
    """Files of the lab that make time and the guest. The machine counts by its arguments
    instead."""
    named = (
        "numatime/Makefile",
        "numatime/guest/mark.c",
        "modelled.py",
        "modelled-init",
        "initramfs.py",
    )
    return [*sorted((LAB / "numatime").glob("*.[ch]")), *(LAB / name for name in named)]


# Files beside `sources` that each guest's lab/run reads anew.
READ_BY_RUN = (
    "run",
    "run_options.py",
    "guest_process.py",
    "host_guest.py",
    "modelled_guest.py",
    "qemu_machine.py",
    "machines.py",
    "nearside.py",
    "common.py",
    "xen.py",
    "xen-dom0-init",
    "xen-domu-init",
    "xen-clock.c",
)


def read_by_guests():
    """Files that each guest's lab/run reads anew, while lab/compare has read them at its start."""
    return [*sources(), *(LAB / name for name in READ_BY_RUN)]


def emulated(machine):
    """Arguments of the plugin and of QEMU that describe a machine."""
    options = SimpleNamespace(smt=1, **machine.run_options())
    return [*machine.plugin_arguments(), *machine_arguments(options)[0]]


def executable(name):
    found = shutil.which(name)
    if not found:
        raise LabError(f"no {name}: run scripts/install lab")
    return Path(found)


def qemu_files(qemu, environment):
    """Its program and its firmware, from where it takes that."""
    listed = subprocess.run(
        [*qemu, "-L", "help"], stdout=subprocess.PIPE, text=True, check=False, env=environment
    )
    folders = [Path(line) for line in listed.stdout.splitlines()]
    found = (
        next((folder / name for folder in folders if (folder / name).exists()), None)
        for name in FIRMWARE
    )
    return [executable(qemu[0]), *filter(None, found)]


def qemu_version(qemu, environment):
    told = subprocess.run(
        [*qemu, "--version"], stdout=subprocess.PIPE, text=True, check=False, env=environment
    )
    return re.sub(r"^QEMU emulator version ", "", told.stdout.partition("\n")[0])


def without_comments(text):
    """C without its comments and the arrangement of its lines. A string keeps what looks like a
    comment."""
    parts = r'("(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\')|/\*.*?\*/|//[^\n]*'
    kept = re.sub(parts, lambda found: found[1] or " ", text, flags=re.DOTALL)
    return " ".join(kept.split())


def scheduler():
    """A digest of the BPF scheduler's sources, which no comment changes. Its decisions are a header
    in a crate of their own."""
    crates = LAB.parent / "crates"
    found = [*crates.glob("scheduler/src/bpf/*.[ch]"), crates / "credit/src/credit.h"]
    return digest(
        *(
            f"{path.name}\0{without_comments(path.read_text())}\0"
            for path in sorted(found, key=lambda path: path.name)
        )
    )


def commit():
    """Of this checkout, if it is one."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    told = subprocess.run(command, capture_output=True, text=True, check=False, cwd=LAB.parent)
    return told.stdout.strip() or "unknown"


@functools.cache
def libraries(program, setting):
    """Libraries that the loader loads for a program behind these words, as lab/run finds them, with
    the loader itself."""
    told = subprocess.run([*setting, "ldd", program], capture_output=True, text=True, check=False)
    found = [Path(path) for path in re.findall(r"=> (/\S+)", told.stdout)]
    return [*found, initramfs.LOADER] if found else []


@functools.cache
def xen_files(image):
    """Files of guests under Xen beside the workload. dom0's modules belong to the kernel's
    image."""
    packages = xen.Packages()
    loaded = [
        library
        for program in packages.programs().values()
        for library in packages.libraries(program)
    ]
    modules = [image.parent / f"kernel/drivers/xen/{module}.ko.xz" for module in xen.MODULES]
    return [*xen.sources(), *loaded, packages.folder / "libgcc_s.so.1", *modules]
