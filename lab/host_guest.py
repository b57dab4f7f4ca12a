"""Guests around the host's file system: virtme-ng, the kernel's arguments, the command's
surroundings."""

import os
import pwd
import shlex
import shutil
import subprocess
import time
from pathlib import Path

from common import CACHE, LAB, LabError, find_kernel
from guest_process import (
    BOOTS,
    EXIT_LAB_FAILED,
    EXIT_TIMEOUT,
    new_run,
    run_batch,
    say,
    show_last_words,
)
from qemu_machine import machine_arguments

# Folders of the guest's own. Of the host's, only shared paths are visible there.
OWN_FOLDERS = (Path("/tmp"), Path("/var/tmp"))

# Variables of the caller that CMD sees.
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TERM", "COLUMNS", "NO_COLOR", "CLICOLOR_FORCE", "CI", "TZ")
PASSED_ON_PREFIXES = ("NEARSIDE_", "CARGO_", "RUST_", "RUSTUP_", "INSTA_", "PROPTEST_")

# Shortens the boot or keeps emulation quiet. No test can see a difference in NUMA.
KERNEL_ARGUMENTS = [
    "mitigations=off",
    "audit=0",
    "nowatchdog",  # an emulated CPU waits long for its turn on a busy host
    "rcupdate.rcu_cpu_stall_suppress=1",
    "oops=panic",  # a kernel bug ends the guest and so fails the test
]
# Modules of devices without a use here. Only udev (--systemd) would load them, at about half a
# second each.
UNUSED_MODULES = (
    "button,evdev,pcspkr,serio_raw,psmouse,lpc_ich,i2c_i801,iTCO_wdt,iTCO_vendor_support,"
    "intel_pmc_bxt,i6300esb,watchdog,qemu_fw_cfg,ahci,libahci,sr_mod,sg,aesni_intel,powernow_k8,"
    "acpi_cpufreq,ghash_clmulni_intel,polyval_clmulni,sha512_ssse3,drm,bochs,simpledrm"
)
# .. and those of a host of virtual machines.
HYPERVISOR_MODULES = "kvm,kvm_amd,kvm_intel,ccp"


def kvm_works(kernel):
    """Whether the kernel really boots under KVM. /dev/kvm may exist and open, and the first guest
    still die of an instruction the (nested) hypervisor cannot run; so boot one, once for each boot
    of the host, and remember."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    verdict = CACHE / "kvm" / Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if not verdict.exists():
        say("trying KVM (once)")
        probe = [
            "qemu-system-x86_64",
            "-accel",
            "kvm",
            "-cpu",
            "host",
            "-m",
            "512M",
            "-nodefaults",
            "-display",
            "none",
        ]
        # Without a root file system the kernel panics after a full boot, and panic=-1 makes that a
        # clean exit.
        probe += ["-no-reboot", "-kernel", kernel, "-append", "panic=-1 quiet"]
        try:
            works = (
                subprocess.run(
                    probe, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False
                ).returncode
                == 0
            )
        except subprocess.TimeoutExpired:
            works = False
        # Another lab/run may be reading: it finds the whole verdict or none.
        verdict.parent.mkdir(parents=True, exist_ok=True)
        fresh = verdict.with_name(f"{verdict.name}.{os.getpid()}")
        fresh.write_text("yes" if works else "no")
        fresh.replace(verdict)
        say("KVM works" if works else "KVM does not work here: emulating")
    return verdict.read_text() == "yes"


def kernel_arguments(options, run):
    unused = UNUSED_MODULES if options.nested else f"{UNUSED_MODULES},{HYPERVISOR_MODULES}"
    arguments = [*KERNEL_ARGUMENTS, f"module_blacklist={unused}"]
    if options.cgroup in ("disabled", "hybrid"):
        # "hybrid" mounts what v1 still offers; recent kernels have no v1 cpuset and memory, so take
        # those away too.
        arguments.append(
            "cgroup_disable=cpuset,memory"
            + (",cpu,hugetlb" if options.cgroup == "disabled" else "")
        )
    if options.systemd:
        # lab/guest-init makes that unit: basic.target, D-Bus and CMD, none of the services the host
        # has enabled.
        arguments += [
            f"nearside_systemd={run}",
            "systemd.unit=lab.service",
            "systemd.show_status=false",
        ]
    for extra in options.append:
        arguments += shlex.split(extra)
    return arguments


def below(path, top):
    return path == top or top in path.parents


def overlays(directories):
    """Top-level folders made writable in the guest. lab/guest-init does /usr; /tmp and /run are
    fresh."""
    wanted = ["/etc", "/var", "/root", "/home"]
    wanted += ["/" + path.parts[1] for path in directories if len(path.parts) > 1]
    unwanted = {"/usr", "/tmp", "/run", "/dev", "/proc", "/sys"}
    return [top for top in dict.fromkeys(wanted) if top not in unwanted and os.path.isdir(top)]


def kept_below(top, paths):
    """Shared paths below a folder of the guest's own."""
    return [path for path in paths if below(path, top) and path != top]


def write_settings(run, options, cwd, shared):
    """Writes the settings of lab/guest, as shell assignments."""
    exports = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES)
    }
    for setting in options.env:
        name, given, value = setting.partition("=")
        exports[name] = value if given else os.environ.get(name, "")
    command = options.command or ["bash", "--norc", "-i"]
    if options.user != "root":
        try:
            user = pwd.getpwnam(options.user)
        except KeyError:
            raise LabError(f"--user {options.user}: there is no such user") from None
        exports |= {"HOME": user.pw_dir, "USER": options.user}
        become = [
            "/usr/bin/setpriv",
            f"--reuid={user.pw_uid}",
            f"--regid={user.pw_gid}",
            "--init-groups",
            "--inh-caps=-all",
            "--",
        ]
        command = become + command
    lines = [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
    # /tmp always; /var/tmp only where something below it is shared, for virtme-ng's init makes one,
    # too.
    own = [top for top in OWN_FOLDERS if top == OWN_FOLDERS[0] or kept_below(top, shared)]
    keep = [path for top in own for path in kept_below(top, shared)]
    lines += [
        f"own_folders={shlex.quote(' '.join(map(str, own)))}",
        f"cwd={shlex.quote(str(cwd))}",
        f"cgroup={options.cgroup}",
        "each_kept() {",
        "  :",
        *(f'  "$1" {shlex.quote(str(path))}' for path in keep),
        "}",
        # env: busybox would run its own tools in place of the system's.
        f"run_command() {{ /usr/bin/env -- {shlex.join(command)}; }}",
    ]
    (run / "settings").write_text("\n".join(lines) + "\n")
    shutil.copy(LAB / "guest", run / "guest")
    shutil.copy(LAB / "guest-init", run / "guest-init")


def virtme_command(options, run, kernel, cwd, out):
    machine, memory = machine_arguments(options)
    kvm = options.accel in ("auto", "kvm") and kvm_works(kernel)
    if options.accel == "kvm" and not kvm:
        raise LabError("--accel kvm: KVM does not work on this machine")
    command = [
        str(CACHE / "venv/bin/virtme-run"),
        "--kimg",
        kernel,
        "--mods",
        "auto",
        "--force-9p",
        "--disable-microvm",
    ]
    command += [
        "--qemu-bin",
        str(LAB / "qemu"),
        "--disable-monitor",
        "--name",
        "lab",
        "--cwd",
        str(cwd),
    ]
    command += ["--memory", f"{memory >> 20}M", "--user", "root"]
    if options.verbose:
        command += ["--show-boot-console", "--verbose"]
    qemu = machine + ["-nodefaults", "-machine", "q35,sata=off,smbus=off,i8042=off,vmport=off"]
    if kvm:
        qemu += ["-cpu", "host"]
    elif options.nested:
        # The CPU whose virtualization QEMU emulates is an AMD one.
        command.append("--disable-kvm")
        qemu += ["-accel", f"tcg,thread={options.threads}", "-cpu", "qemu64,+svm,+npt"]
    else:
        command.append("--disable-kvm")
        # la57: five-level page tables make every emulated page walk longer. An Intel name, because
        # QEMU shows SMT siblings of AMD CPUs only under KVM.
        qemu += [
            "-accel",
            f"tcg,thread={options.threads}",
            "-cpu",
            "max,vendor=GenuineIntel,la57=off,-svm",
        ]
    # The root file system once more, for lab/guest-init to mount with a cache.
    qemu += ["-fsdev", "local,id=hostfs,path=/,security_model=none,readonly=on,multidevs=remap"]
    qemu += ["-device", "virtio-9p-pci,fsdev=hostfs,mount_tag=hostfs"]
    for argument in qemu + [word for extra in options.qemu for word in shlex.split(extra)]:
        command.append(f"--qemu-opt={argument}")
    kernel_words = kernel_arguments(options, run)
    if not options.verbose:
        kernel_words.append(
            "loglevel=5"
        )  # warnings and worse, into the log that show_last_words shows
    for word in kernel_words:
        command += [f"--kopt={word}"]
    for top in overlays([cwd, run]):
        command += ["--overlay-rwdir", top]
    for folder in [run] + ([out] if out else []):
        command += ["--rwdir", f"{folder}={folder}"]
    if options.command:
        command += ["--script-sh", f"exec busybox sh {shlex.quote(str(run / 'guest'))}"]
    else:
        command += ["--shell", str(run / "guest")]
    return command


def run_guest(options):
    if not (CACHE / "venv/bin/virtme-run").exists() or not shutil.which("qemu-system-x86_64"):
        raise LabError("not installed; run: scripts/install lab")
    kernel = find_kernel(options.kernel)
    cwd = Path.cwd().resolve()
    out = None
    if options.out:
        out = Path(options.out).resolve()
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LabError(f"--out {options.out}: {error.strerror}") from None

    run, _held = new_run()
    try:
        shared = [cwd, run, LAB.parent, CACHE / "kernels"] + ([out] if out else [])
        write_settings(run, options, cwd, [path.resolve() for path in shared])
        command = virtme_command(options, run, kernel, cwd, out)
        environment = dict(
            os.environ,
            NEARSIDE_GUEST_INIT=str(run / "guest-init"),
            NEARSIDE_CONSOLE_LOG=str(run / "console.log"),
        )
        if options.dry_run:
            print(shlex.join(command))
            return 0
        if not options.command:
            return (
                0
                if subprocess.run(command, env=environment, check=False).returncode == 0
                else EXIT_LAB_FAILED
            )
        booted = run / "booted"
        left = options.timeout or None
        for boot in range(1, BOOTS + 1):
            booted.unlink(missing_ok=True)
            started = time.monotonic()
            ended, came_up, _ = run_batch(command, environment, left, booted)
            seconds = time.monotonic() - started
            left = left and left - seconds
            if ended or came_up or boot == BOOTS or (left is not None and left < 1):
                break
            say(
                f"the guest had not come up after {seconds:.0f} s; "
                f"starting it anew ({boot} of {BOOTS - 1})"
            )
            show_last_words(run, options.verbose)
        if (run / "status").exists():
            if options.verbose:
                say(
                    f"the guest ran {seconds:.1f} s "
                    f"and had booted after {booted.read_text().strip()} s"
                )
            return int((run / "status").read_text())
        if not ended:
            what = "CMD still ran" if came_up else "the guest had not come up"
            tries = f" ({boot} tries)" if boot > 1 else ""
            say(f"timeout: {what} after {seconds:.0f} s{tries}; stopped")
            show_last_words(run, options.verbose)
            return EXIT_TIMEOUT
        say("the guest died while CMD ran" if came_up else "the guest did not come up")
        show_last_words(run, options.verbose)
        return EXIT_LAB_FAILED
    finally:
        shutil.rmtree(run, ignore_errors=True)
