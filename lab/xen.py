"""Guests under modelled time that run Xen: QEMU boots it with a dom0, which makes a PV guest for
each domain of a workload and leaves it to libxl where that is placed
(docs/adr/0010-comparing.md)."""

import gzip
import json
import lzma
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import modelled
from common import LAB, LabError
from initramfs import Initramfs

# dom0 does no work of its own: it holds the toolstack, the guests' kernel and their file system.
DOM0_CPUS = 2
DOM0_MIB = 512

# MiB for a guest's kernel and its file system beside the domain.
GUEST_MIB = 92

# Xen's scheduler balances by the load of the last 2 to the power of 30 ns. Intervals of seconds are
# twenty times shorter in a comparison; of powers of two, sixteen times is nearest.
LOAD_WINDOW_SHIFT = 26

# As modelled.KERNEL_ARGUMENTS has it for Linux: nothing that costs time but the work. Xen keeps the
# first serial port for itself.
XEN_ARGUMENTS = (
    "console=com1 com1=115200,8n1 conring_size=256k numa=on spec-ctrl=no "
    f"dom0_mem={DOM0_MIB}M,max:{DOM0_MIB}M dom0_max_vcpus={DOM0_CPUS} "
    f"credit2_load_window_shift={LOAD_WINDOW_SHIFT}"
)
LINUX_ARGUMENTS = (
    "console=hvc0 quiet loglevel=4 panic=-1 oops=panic mitigations=off nokaslr "
    "random.trust_bootloader=off " + " ".join(modelled.SHORT_BOOT)
)

# In dom0, in the order in which they need each other.
MODULES = ("xen-evtchn", "xen-privcmd", "xen-gntdev", "xenfs/xenfs")

# In packages of this release; programs by where they go in dom0.
VERSION = "4.20"
TOOLS = {
    **{
        f"/bin/{name}": f"usr/lib/xen-{VERSION}/bin/{name}"
        for name in ("xl", "xenstored", "xenconsoled", "xen-init-dom0")
    },
    **{
        f"/bin/xenstore-{name}": f"usr/bin/xenstore-{name}"
        for name in ("chmod", "read", "watch", "write")
    },
}

NS_PER_MS = 1_000_000
PAGE_BYTES = 4096


class Packages:
    """Debian's Xen. Its own libraries come along, since this machine's may be older."""

    def __init__(self):
        found = subprocess.run(
            [LAB / "packages", "xen"], stdout=subprocess.PIPE, text=True, check=False
        )
        if found.returncode:
            raise LabError("no Xen")
        self.root = Path(found.stdout.strip())
        self.folder = self.root / "usr/lib/x86_64-linux-gnu"
        self.loader = self.folder / "ld-linux-x86-64.so.2"
        self.hypervisor_file = self.root / f"boot/xen-{VERSION}-amd64.gz"

    def hypervisor(self):
        """In the form that QEMU boots by the Multiboot protocol."""
        return gzip.decompress(self.hypervisor_file.read_bytes())

    def programs(self):
        return {place: self.root / path for place, path in TOOLS.items()}

    def libraries(self, program):
        done = subprocess.run(
            [self.loader, "--library-path", self.folder, "--list", program],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or "not found" in done.stdout:
            said = f"{done.stdout}{done.stderr}"
            raise LabError(f"the packages lack a library that {program} needs:\n{said}")
        return [Path(path) for path in re.findall(r"=> (/\S+) ", done.stdout)]

    def add(self, archive, program, place, folder, loader):
        """A program of theirs, and its libraries into the folder."""
        archive.add(place, program.read_bytes())
        for library in self.libraries(program):
            archive.add(
                loader if library == self.loader else Path(folder) / library.name,
                library.read_bytes(),
            )


def sources():
    """Files that a result depends on beside the kernel and the workload."""
    packages = Packages()
    own = [LAB / name for name in ("xen.py", "xen-dom0-init", "xen-domu-init", "xen-clock.c")]
    return [*own, packages.hypervisor_file, *packages.programs().values()]


def domains_of(command):
    """The domains of `workloads play WHICH..`, as the program itself describes them."""
    if len(command) < 3 or command[1] != "play":
        raise LabError(
            "--xen needs a CMD of the form: workloads play WORKLOAD [--domains N] [--cache-kib K]"
        )
    done = subprocess.run(
        [command[0], "describe", *command[2:]], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise LabError(
            "under Xen, a workload is played with --domains and --cache-kib alone: libxl places it"
        )
    return json.loads(done.stdout)


def configuration(number, domain):
    """As `xl create` takes it. Nothing says where: libxl decides, and Xen's default scheduler goes
    by that."""
    return "\n".join(
        [
            f'name = "d{number}"',
            'type = "pv"',
            'kernel = "/guest/kernel"',
            'ramdisk = "/guest/initramfs"',
            f'extra = "{LINUX_ARGUMENTS} domain={number}"',
            f"vcpus = {domain['vcpus']}",
            f"memory = {domain['memory_mib'] + GUEST_MIB}",
            # The clock that the workload reads is the machine's.
            'tsc_mode = "native"',
            'on_crash = "preserve"',
            "",
        ]
    )


def settings(program, domain):
    """Settings of a guest's init: its domain."""
    words = shlex.join([str(program), "domain", *domain["program"]])
    return f"delay_ms={domain['delay_ms']}\nrun_domain() {{ {words}; }}\n"


def busybox():
    found = shutil.which("busybox")
    if not found:
        raise LabError("no busybox: run scripts/install lab")
    return Path(found).read_bytes()


def build_guest(path, options, cwd, packages, domains):
    archive = Initramfs()
    archive.add("/bin/busybox", busybox())
    archive.add("/init", (LAB / "xen-domu-init").read_bytes())
    program = cwd / options.command[0]
    archive.add_program(program)
    for named in options.with_files:
        modelled.add_named(archive, named, cwd)
    # Xen's libc stays away from the workload's.
    for name in ("watch", "write"):
        packages.add(
            archive,
            packages.programs()[f"/bin/xenstore-{name}"],
            f"/xen/xenstore-{name}",
            "/xen",
            "/xen/loader",
        )
    for number, domain in enumerate(domains):
        archive.add(f"/domains/{number}", settings(program, domain).encode(), 0o644)
    archive.write(path)


def build_clock(path):
    command = [
        "cc",
        "-O2",
        "-static",
        "-s",
        "-I",
        LAB / "numatime/guest",
        "-o",
        path,
        LAB / "xen-clock.c",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"lab/xen-clock.c does not build:\n{done.stderr}")


def build(run, options, cwd, kernel, domains):
    """All that QEMU is given: Xen, dom0's kernel and its file system, which holds the guests'."""
    packages, archive = Packages(), Initramfs()
    archive.add("/bin/busybox", busybox())
    archive.add("/init", (LAB / "xen-dom0-init").read_bytes())
    # libc opens it when it is needed, to end a thread.
    archive.add("/lib/libgcc_s.so.1", (packages.folder / "libgcc_s.so.1").read_bytes())
    for place, program in packages.programs().items():
        packages.add(archive, program, place, "/lib", "/lib64/ld-linux-x86-64.so.2")
    for module in MODULES:
        name = Path(module).name
        compressed = Path(kernel).parent / f"kernel/drivers/xen/{module}.ko.xz"
        try:
            archive.add(f"/modules/{name}.ko", lzma.decompress(compressed.read_bytes()), 0o644)
        except OSError as error:
            raise LabError(f"{compressed}: {error.strerror}; dom0 needs it") from None
    build_clock(run / "clock")
    archive.add("/bin/xen-clock", (run / "clock").read_bytes())
    build_guest(run / "guest", options, cwd, packages, domains)
    archive.add("/guest/initramfs", (run / "guest").read_bytes(), 0o644)
    archive.add("/guest/kernel", (run / "kernel").read_bytes(), 0o644)
    (run / "xen").write_bytes(packages.hypervisor())
    for number, domain in enumerate(domains):
        archive.add(f"/guest/d{number}", configuration(number, domain).encode(), 0o644)
    lines = [
        f"domains={len(domains)}",
        f"modules={shlex.quote(' '.join(Path(module).name for module in MODULES))}",
    ]
    archive.add("/settings", "\n".join([*lines, ""]).encode(), 0o644)
    archive.write(run / "initramfs")


def qemu_command(qemu, options, machine, machine_arguments, plugin, kernel, run):
    """The same machine; Xen in place of the kernel, which is dom0's."""
    command = modelled.qemu_command(qemu, options, machine, machine_arguments, plugin, kernel, run)
    for option, value in (
        ("-kernel", run / "xen"),
        ("-append", XEN_ARGUMENTS),
        ("-initrd", f"{kernel} {LINUX_ARGUMENTS},{run / 'initramfs'}"),
    ):
        command[command.index(option) + 1] = str(value)
    return command


def bytes_by_node(said):
    """Where Xen says that each of its domains lies, by their numbers: `xl debug-keys u`."""
    lies, domain = {}, None
    for line in said.splitlines():
        if found := re.search(r"\bd(\d+) \(total: \d+\):", line):
            domain = lies.setdefault(int(found[1]), {})
        elif (found := re.search(r"\bNode (\d+): (\d+)$", line)) and domain is not None:
            domain[found[1]] = int(found[2]) * PAGE_BYTES
    return lies


def soft_affinity(said):
    """Where Xen's scheduler shall prefer to run each guest, by its name: `xl vcpu-list`."""
    return {found[1]: found[2] for found in re.finditer(r"^(d\d+) .* / (\S+)$", said, re.MULTILINE)}


def result_of(said, workload, domains):
    """The result in the form of `workloads play`, from the output of dom0's init, and the nodes
    that libxl chose for each guest."""
    begin_ns = re.search(r"^begin (\d+)$", said, re.MULTILINE)
    done_ns = [int(ns) for ns in re.findall(r"^done \d+ (\d+)$", said, re.MULTILINE)]
    lies, affinity = bytes_by_node(said), soft_affinity(said)
    # dom0 is 0, and the guests follow.
    if (
        not begin_ns
        or len(done_ns) != len(domains)
        or not all(
            number + 1 in lies and f"d{number}" in affinity for number in range(len(domains))
        )
    ):
        raise LabError(f"dom0 did not say all that was asked:\n{said}")
    times_ms = [(ns - int(begin_ns[1])) / NS_PER_MS for ns in done_ns]
    results = [
        {
            "delay_ms": domain["delay_ms"],
            "time_ms": time_ms - domain["delay_ms"],
            "memory_bytes": lies[number],
        }
        for number, (domain, time_ms) in enumerate(zip(domains, times_ms, strict=True), 1)
    ]
    placement = [
        {
            "nodes": [int(node) for node, count in lies[number + 1].items() if count],
            "soft_affinity": affinity[f"d{number}"],
        }
        for number in range(len(domains))
    ]
    return {
        "workload": workload,
        "total_ms": max(times_ms),
        "domains": results,
        "moved_pages": {},
        "scheduler": None,
        "daemon": None,
        "placement": placement,
    }
