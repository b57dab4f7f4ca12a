"""Guests under modelled time (lab/numatime): QEMU, the plugin, and their initramfs."""

import ctypes
import functools
import hashlib
import os
import re
import shlex
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import machines
from common import CACHE, LAB, LabError
from initramfs import Initramfs

# The plugin hooks into this QEMU; it checks the binary itself, too.
QEMU_MAJOR = 10

# QEMU's exit code after the plugin's watchdog (numatime.h).
EXIT_WATCHDOG = 86

# .. and after the limit of the guest's time.
EXIT_TIME_LIMIT = 87

# How far the clocks of CPUs may be apart, if nothing else is asked for.
QUANTUM_US = 10

# Host memory beside the guest's: QEMU with translated code, and the plugin's records of each line
# (numatime/directory.c).
QEMU_BYTES = 1 << 30
LINE_BYTES, KNOWN_BYTES = 64, 9

# Host seconds in which the guest's clock stands still. Far more than a busy host takes for one
# round of the clock.
WATCHDOG_SECONDS = 120

# More than half of a boot's instructions otherwise: how far the TSC comes in a tick of 4 ms is
# known, CPUs need no pauses to start, and ciphers were tested elsewhere.
SHORT_BOOT = (
    "lpj=4000000 cpu_init_udelay=0 cryptomgr.notests "
    "initcall_blacklist=fips_signature_selftest_init"
).split()

# The modelled TSC runs at 1 GHz; the rest keeps the kernel from measuring it, and chance out.
KERNEL_ARGUMENTS = (
    "console=ttyS0 8250.nr_uarts=4 quiet loglevel=4 panic=-1 oops=panic mitigations=off nokaslr "
    "tsc=reliable tsc_early_khz=1000000 clocksource=tsc random.trust_bootloader=off"
).split() + SHORT_BOOT


@functools.cache
def build_folder():
    """Where the plugin and its guest programs are built: another folder for other sources, so that
    checkouts can share a cache."""
    sources = hashlib.sha256()
    for path in sorted(
        path
        for path in (LAB / "numatime").rglob("*")
        if path.suffix in (".c", ".h") or path.name == "Makefile"
    ):
        sources.update(path.read_bytes())
    return CACHE / "numatime" / sources.hexdigest()[:16]


def guest_program(name):
    """A guest program of lab/numatime, where build_plugin has put it."""
    return build_folder() / name


def build_plugin():
    """The plugin and its guest programs, built unless these sources have been."""
    folder = build_folder()
    if not folder.is_dir():
        if not shutil.which("make") or not shutil.which("cc"):
            raise LabError("no C compiler or make: run scripts/install build lab")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
            command = ["make", "--silent", "-C", LAB / "numatime", f"BUILD={partial}/build"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise LabError(f"lab/numatime does not build:\n{done.stdout}{done.stderr}")
            try:
                os.rename(f"{partial}/build", folder)
            except OSError:
                # Another process has built the same meanwhile.
                if not folder.is_dir():
                    raise
    return folder / "libnumatime.so"


def qemu_version(command, environment=None):
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, check=False, env=environment
        )
    except OSError:
        return None
    found = re.search(r"version (\d+)\.", done.stdout)
    return int(found[1]) if found else None


def find_qemu():
    """QEMU's command and environment: this machine's own if it is the right one, else one from
    Debian's backports."""
    own = ["qemu-system-x86_64"]
    if qemu_version(own) == QEMU_MAJOR:
        return own, dict(os.environ)
    found = subprocess.run(
        [LAB / "packages", "qemu"], stdout=subprocess.PIPE, text=True, check=False
    )
    if found.returncode:
        raise LabError(f"modelled time needs QEMU {QEMU_MAJOR}")
    root = Path(found.stdout.strip())
    command = [str(root / "usr/bin/qemu-system-x86_64")]
    command += ["-L", str(root / "usr/share/qemu"), "-L", str(root / "usr/share/seabios")]
    libraries = [root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu"]
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(map(str, libraries)))
    version = qemu_version(command, environment)
    if version != QEMU_MAJOR:
        raise LabError(
            f"modelled time needs QEMU {QEMU_MAJOR}; "
            f"the packages hold {version or 'one that does not run here'}"
        )
    return command, environment


def check_host(machine):
    """Ends where the machine is too much for it. More memory than it has would end in swapping or
    in QEMU's death halfway."""
    available = re.search(
        r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE
    )
    room = (
        max(0, (int(available[1]) << 10) - QEMU_BYTES) * LINE_BYTES // (LINE_BYTES + KNOWN_BYTES)
        if available
        else None
    )
    machine.refuse_beyond(machines.MAX_MIB if room is None else room >> 20)


def host_bytes(guest_bytes):
    """Host memory that a guest with so much memory takes."""
    return guest_bytes + guest_bytes // LINE_BYTES * KNOWN_BYTES + QEMU_BYTES


def uncompressed(kernel):
    """The ELF image in a bzImage, so that no guest has to unpack it
    (Documentation/arch/x86/boot.rst): QEMU boots it by the PVH protocol."""
    image = Path(kernel).read_bytes()
    offset, length = struct.unpack_from("<II", image, 0x248)
    offset += (image[0x1F1] + 1) * 512
    # Behind it stands how long it will be.
    payload, size = (
        image[offset : offset + length - 4],
        struct.unpack_from("<I", image, offset + length - 4)[0],
    )
    if payload[:4] != b"\x28\xb5\x2f\xfd":
        raise LabError(
            f"{kernel} is not compressed with zstd; kernels for modelled time have to be"
        )
    try:
        zstd = ctypes.CDLL("libzstd.so.1")
    except OSError as error:
        raise LabError(f"modelled time needs libzstd: {error}") from None
    zstd.ZSTD_decompress.argtypes = [
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    zstd.ZSTD_decompress.restype = ctypes.c_size_t
    unpacked = ctypes.create_string_buffer(size)
    if zstd.ZSTD_decompress(unpacked, size, payload, len(payload)) != size:
        raise LabError(f"{kernel} cannot be unpacked")
    return unpacked.raw


def add_named(archive, named, cwd):
    """--with FILE or FILE=PATH."""
    source, _, path = named.partition("=")
    archive.add_program(cwd / source, path or cwd / source)


def build_initramfs(path, options, cwd):
    archive = Initramfs()
    program = shutil.which(options.command[0])
    if not program:
        raise LabError(f"no program {options.command[0]!r} on this host")
    busybox = shutil.which("busybox")
    if not busybox:
        raise LabError("no busybox: run scripts/install lab")
    archive.add("/bin/busybox", Path(busybox).read_bytes())
    archive.add("/init", (LAB / "modelled-init").read_bytes())
    archive.add("/bin/numatime-mark", guest_program("mark").read_bytes())
    program = cwd / program
    if program.resolve() == Path(busybox).resolve():
        program = Path("/bin/busybox")
    else:
        archive.add_program(program)
    for named in options.with_files:
        add_named(archive, named, cwd)
    archive.add_folder(cwd)
    exports = dict(
        setting.split("=", 1) if "=" in setting else (setting, os.environ.get(setting, ""))
        for setting in options.env
    )
    lines = [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
    lines += [
        f"cwd={shlex.quote(str(cwd))}",
        f"run_command() {{ {shlex.join([str(program), *options.command[1:]])}; }}",
    ]
    archive.add("/settings", "\n".join([*lines, ""]).encode(), 0o644)
    archive.write(path)


def qemu_command(qemu, options, machine, machine_arguments, plugin, kernel, run):
    words = [
        *machine.plugin_arguments(),
        f"quantum_us={options.quantum_us}",
        f"watchdog_s={WATCHDOG_SECONDS}",
    ]
    words += [f"time_limit_s={options.time_limit:g}"] if options.time_limit else []
    words += [f"seed={options.seed}", f"out={run / 'counters'}", f"now={run / 'now'}"]
    command = [
        *qemu,
        "-accel",
        "tcg,thread=single",
        "-cpu",
        "qemu64,+rdtscp",
        "-machine",
        "q35",
        "-m",
        f"{machine.memory_bytes() >> 20}M",
    ]
    command += machine_arguments
    command += ["-plugin", ",".join([str(plugin), *words])]
    # Chance comes from the plugin's seed alone. vapic: a hack for old Windows that patches the
    # guest's code.
    command += [
        "-seed",
        "1",
        "-rtc",
        "base=2024-01-01,clock=vm",
        "-global",
        "apic-common.vapic=off",
    ]
    command += ["-kernel", str(kernel), "-initrd", str(run / "initramfs")]
    command += [
        "-append",
        " ".join(
            [*KERNEL_ARGUMENTS, *(word for extra in options.append for word in shlex.split(extra))]
        ),
    ]
    command += ["-no-reboot", "-nodefaults", "-monitor", "none", "-display", "none"]
    command += [
        "-serial",
        f"file:{run / 'console.log'}",
        "-serial",
        "stdio",
        "-serial",
        f"file:{run / 'status'}",
    ]
    return command + [word for extra in options.qemu for word in shlex.split(extra)]
