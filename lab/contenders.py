"""The contenders of a comparison: each places domains on NUMA nodes in its own way."""

# Control intervals of all contenders (Nearside's daemon, NUMA balancing) are shorter than by
# default by this factor: a second of the guest stands for so many (docs/adr/0010-comparing.md).
FASTER = 20

# Contenders, in the table's order, and their descriptions there.
CONTENDERS = {
    "stock": "stock kernel, NUMA balancing off",
    "balancing": "stock kernel, NUMA balancing on",
    "numad": "cpuset a domain, as numad advises",
    "pin-naive": "cpuset a domain, nodes in turn",
    "pin-oracle": "cpuset a domain, placed knowing the work",
    "xen": "Xen 4.20: a PV guest a domain, placed by libxl",
    "nearside": "Nearside: placement, scheduler, daemon",
    "queue": "stock kernel, Nearside's queue before each mutex",
    "local": "bound: all lines local, CPUs shared out ideally",
    "remote": "bound: all lines remote, CPUs shared out ideally",
}
BOUNDS = ("local", "remote")


def contenders_of(workload):
    """The contenders that differ for a workload: one of them is about mutexes."""
    return [name for name in CONTENDERS if name != "queue" or workload == "lock"]


def naive_pins(domains, machine):
    """The node of each domain, by a script that counts domains."""
    return [number % len(machine.nodes) for number in range(len(domains))]


def oracle_pins(domains, machine):
    """The node of each domain, given the CPU time that each will need: the most demanding domain
    first, each to the node with the least load for its CPUs."""
    load, pins = [0] * len(machine.nodes), [0] * len(domains)
    for number in sorted(range(len(domains)), key=lambda number: -domains[number]["work"]):
        pins[number] = min(
            range(len(load)), key=lambda node: (load[node] / machine.nodes[node].cpus, node)
        )
        load[pins[number]] += domains[number]["work"]
    return pins
