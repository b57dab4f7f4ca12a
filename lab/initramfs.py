"""An initramfs: programs of the host with the libraries they need, and busybox for the rest."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from common import LabError

# Beside the folders of packages.
FOLDERS = ("bin", "lib", "lib64", "proc", "sys", "dev", "run", "tmp")
LOADER = Path("/lib64/ld-linux-x86-64.so.2")


class Initramfs:
    """Contents by path without the leading slash. The same files make the same archive, to the last
    bit."""

    def __init__(self):
        self.files = {}
        self.folders = set(FOLDERS)

    def add(self, path, content, mode=0o755):
        name = os.path.normpath(str(path)).lstrip("/")
        if self.files.setdefault(name, (content, mode))[0] != content:
            raise LabError(f"two different files for /{name}")
        self.folders |= {str(parent) for parent in Path(name).parents if str(parent) != "."}

    def add_folder(self, path):
        name = os.path.normpath(str(path)).lstrip("/")
        if name:
            self.folders |= {name} | {
                str(parent) for parent in Path(name).parents if str(parent) != "."
            }

    def add_program(self, source, path=None):
        """A file of the host, at its own path or another one; if it is an executable, with its
        libraries in /lib."""
        source = Path(source)
        try:
            content = source.read_bytes()
        except OSError as error:
            raise LabError(f"{source}: {error.strerror}") from None
        mode = 0o755 if os.access(source, os.X_OK) else 0o644
        if content[:4] == b"\x7fELF":
            for library in libraries(source):
                self.add(Path("lib") / library.name, library.read_bytes())
                self.add(LOADER, LOADER.read_bytes())
            content = without_debug_information(source, content)
        self.add(path or source, content, mode)

    def write(self, path):
        """In the format "newc": Documentation/driver-api/early-userspace/buffer-format.rst."""
        with open(path, "wb") as out:
            entries = [(name, 0o40755, b"") for name in self.folders]
            entries += [
                (name, 0o100000 | mode, content) for name, (content, mode) in self.files.items()
            ]
            # Folders sort before what is in them.
            for number, (name, mode, content) in enumerate(sorted(entries), 1):
                write_entry(out, number, name, mode, content)
            write_entry(out, 0, "TRAILER!!!", 0, b"")


def write_entry(out, number, name, mode, content):
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name.encode()) + 1, 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
    out.write(head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4))


def libraries(program):
    """Libraries that the loader would load for a program here."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    if missing := re.findall(r"^\s*(\S+) => not found", done.stdout, re.MULTILINE):
        raise LabError(f"{program} needs {', '.join(missing)}, which this machine lacks")
    return [Path(path) for path in re.findall(r"=> (/\S+)", done.stdout)]


def without_debug_information(source, content):
    """The guest unpacks its files in modelled time, so they are better small."""
    if not shutil.which("strip"):
        return content
    with tempfile.NamedTemporaryFile() as stripped:
        done = subprocess.run(
            ["strip", "--strip-debug", "-o", stripped.name, source],
            capture_output=True,
            check=False,
        )
        return Path(stripped.name).read_bytes() if done.returncode == 0 else content
