"""The command line of lab/run."""

import argparse
import re
import shlex

import machines
import modelled

# Options that --model stands in for.
OF_THE_MACHINE = ("nodes", "cpus", "memory", "distances", "smt", "accel", "threads", "nested")

HELP = """\
examples:
  lab/run -- numactl --hardware                four nodes, two CPUs and 512 MiB each
  lab/run                                      a shell in the same machine (Ctrl-D ends it)
  lab/run --nodes 2 --cpus 4 --memory 1G,0 -- cat /sys/devices/system/node/has_memory
  lab/run --cpus 4,4,0,0 -- lscpu              two nodes without CPUs
  lab/run --smt 2 -- lscpu -e                  each core has two threads
  lab/run --distances 16 -- CMD                every other node at 16
  lab/run --distances 12,32 -- CMD             the neighbour in the pairs 0-1, 2-3, .. at 12,
                                               the rest at 32
  lab/run --nodes 3 --distances 10,15,20/15,10,15/20,15,10 -- CMD
                                               a full matrix (need not be symmetric)
  lab/run --nodes 1 -- CMD                     one node: no NUMA at all
  lab/run --cgroup disabled -- CMD             cgroup v2 without cpu, cpuset, memory and hugetlb
  lab/run --cgroup hybrid -- CMD               the same beside v1 hierarchies, as on older hosts
  lab/run --systemd -- systemd-run --scope CMD systemd is PID 1 and answers on D-Bus
  lab/run --user nobody -- CMD                 without privileges
  lab/run --out results -- sh -c 'dmesg > results/dmesg'
                                               the folder is the host's own
  lab/run --model pairs -- busybox uptime      modelled time: remote memory costs what
                                               lab/machines/pairs.toml states
  lab/run --model pairs --with ./data -- ./prog
                                               the same, with a program and a file of the host

inside the guest: the host's file system, copy-on-write: CMD's changes vanish with the guest, except
below --out. The working directory is the caller's; /tmp, /var/tmp, /run, /dev/shm are fresh; there
is no network. NEARSIDE_*, CARGO_*, RUST_* and a few other variables are handed on.

with --model MACHINE (lab/README.md, Modelled time): the guest holds none of the host's file system,
but busybox, CMD's program with its libraries, and the files of --with; and the variables of --env.
CMD has no input; its output comes out as standard output. A modelled second takes 20 to 40 seconds
of the host where 8 CPUs are busy. The same command gives the same result, bit for bit. nearside
reads the machine file; the newest build in target is used, or made (NEARSIDE_BIN names another).

exit codes: CMD's own; 123 when modelled time stands still, or reaches --time-limit; 124 when
--timeout is hit; 125 when the lab failed (no boot, guest panicked); 2 usage. A guest under modelled
time that is stopped leaves its counters so far."""


def words(text):
    """Arguments in one text, as a shell has them."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    return text


def variable(text):
    """NAME[=VALUE], which the guest's shell will export."""
    name = text.partition("=")[0]
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise argparse.ArgumentTypeError(f"{name!r} cannot be a variable's name")
    return text


def parse_options(arguments, description=None):
    parser = argparse.ArgumentParser(
        prog="lab/run",
        usage="lab/run [options] [-- CMD...]",
        description=description,
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    machine = parser.add_argument_group("the machine")
    machine.add_argument("--nodes", type=int, default=4, help="how many (default 4)")
    machine.add_argument(
        "--cpus",
        default="8",
        metavar="N|N,N,..",
        help="in total, or for each node; 0: none (default 8)",
    )
    machine.add_argument(
        "--memory",
        default="512M",
        metavar="SIZE|SIZE,..",
        help="of each node; 0: none (default 512M)",
    )
    machine.add_argument(
        "--distances",
        default="15,30",
        metavar="SPEC",
        help="one value, NEAR,FAR by pairs, or rows (default 15,30)",
    )
    machine.add_argument(
        "--smt", type=int, default=1, metavar="N", help="threads of a core (default 1)"
    )
    machine.add_argument(
        "--accel", choices=("auto", "kvm", "tcg"), default="auto", help="auto: KVM where it works"
    )
    machine.add_argument(
        "--threads",
        choices=("single", "multi"),
        default="single",
        help="host threads of an emulated machine (default single; multi crashes kernels, "
        "see lab/README.md)",
    )
    machine.add_argument(
        "--nested",
        action="store_true",
        help="KVM in the guest (modprobe kvm-amd or kvm-intel), for virtual machines there",
    )
    machine.add_argument(
        "--qemu",
        type=words,
        action="append",
        default=[],
        metavar="ARGS",
        help="more arguments for QEMU",
    )
    model = parser.add_argument_group("modelled time")
    known = ", ".join(machines.names())
    model.add_argument(
        "--model",
        metavar="MACHINE",
        help=f"one of {known}, or a file; in place of the machine above",
    )
    model.add_argument(
        "--with",
        action="append",
        default=[],
        dest="with_files",
        metavar="FILE[=PATH]",
        help="one more file of the host, at its own path or PATH",
    )
    model.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="seed of chance (default 1; 0: no chance)",
    )
    apart = "how far CPUs' clocks may be apart (default %(default)s)"
    model.add_argument(
        "--quantum-us", type=float, default=modelled.QUANTUM_US, metavar="US", help=apart
    )
    limit = (
        "of the guest's own time: one that waits for ever gets there soon (default 3600; 0: none)"
    )
    model.add_argument("--time-limit", type=float, default=3600, metavar="SECONDS", help=limit)
    model.add_argument(
        "--counters",
        metavar="FILE",
        help="the plugin's counters, as JSON lines (lab/numatime/README.md)",
    )
    model.add_argument(
        "--xen",
        action="store_true",
        help="Xen in place of Linux: CMD is `workloads play ..`, whose domains become PV guests "
        "(lab/xen.py)",
    )
    system = parser.add_argument_group("the system in it")
    system.add_argument(
        "--kernel", default="newest", metavar="newest|oldest|VERSION", help="see lab/kernel --help"
    )
    system.add_argument(
        "--append",
        type=words,
        action="append",
        default=[],
        metavar="ARGS",
        help="more kernel arguments",
    )
    system.add_argument(
        "--systemd", action="store_true", help="systemd as PID 1, with a D-Bus system bus"
    )
    system.add_argument(
        "--cgroup",
        choices=("v2", "disabled", "hybrid", "absent"),
        default="v2",
        help="disabled: v2 without cpu, cpuset, memory, hugetlb; hybrid: v1 beside an empty v2; "
        "absent: none mounted",
    )
    command = parser.add_argument_group("the command")
    command.add_argument("--user", default="root", help="user that runs CMD (default root)")
    command.add_argument(
        "--env",
        type=variable,
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="one more variable for CMD",
    )
    command.add_argument(
        "--out", metavar="DIR", help="a folder of the host that CMD may write to, at the same path"
    )
    timeout = "booting included; 0: none (default 900)"
    command.add_argument("--timeout", type=float, default=900, metavar="SECONDS", help=timeout)
    command.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="show the kernel's messages and the time to boot",
    )
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="print the command that would boot the guest, and stop",
    )
    if "--" in arguments:
        split = arguments.index("--")
        options = parser.parse_args(arguments[:split])
        options.command = arguments[split + 1 :]
        if not options.command:
            parser.error("no CMD after --")
    else:
        options = parser.parse_args(arguments)
        options.command = None
    if options.model and not options.command:
        parser.error("--model needs a CMD")
    if options.model and (
        options.systemd or options.cgroup != "v2" or options.user != "root" or options.out
    ):
        parser.error("--model goes without --systemd, --cgroup, --user and --out")
    if options.model and (
        named := [
            name for name in OF_THE_MACHINE if getattr(options, name) != parser.get_default(name)
        ]
    ):
        parser.error(f"--model names the machine: it goes without --{named[0]}")
    if not 0 <= options.time_limit <= 1e6:
        parser.error("--time-limit must be 0 to 1,000,000 seconds")
    if not 0 <= options.timeout <= 1e6:
        parser.error("--timeout must be 0 to 1,000,000 seconds")
    if not 0.001 <= options.quantum_us <= 1e6:
        parser.error("--quantum-us must be 0.001 to 1,000,000 microseconds")
    if not 0 <= options.seed <= 1e15:
        parser.error("--seed must be 0 to 1,000,000,000,000,000")
    if options.smt < 1:
        parser.error("--smt must be 1 or more")
    if not options.model and (options.with_files or options.counters or options.xen):
        parser.error("--with, --counters and --xen need --model")
    if options.xen and (options.append or options.env):
        parser.error("--xen goes without --append and --env")
    if not 1 <= options.nodes <= 128:
        parser.error("--nodes must be 1 to 128")
    if options.systemd and not options.command:
        parser.error("--systemd needs a CMD")
    if options.systemd and options.cgroup in ("hybrid", "absent"):
        parser.error(
            f"--cgroup {options.cgroup} and --systemd exclude each other: systemd lays out its own"
        )
    return options
