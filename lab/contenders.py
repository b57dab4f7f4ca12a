"""Who places domains on NUMA nodes in a comparison, and what some of them know."""

# Control intervals of everybody (Nearside's daemon, NUMA balancing) are so many times shorter than
# by default: a second of the guest stands for so many (docs/adr/0010-comparing.md).
FASTER = 20

# Who places the domains, and what that is called in the table. The order is the table's.
CONTENDERS = {
    "stock": "stock kernel, NUMA balancing off",
    "balancing": "stock kernel, NUMA balancing on",
    "numad": "cpuset a domain, as numad advises",
    "pin-naive": "cpuset a domain, nodes in turn",
    "pin-oracle": "cpuset a domain, by who knows the work",
    "xen": "Xen 4.20: a PV guest a domain, placed by libxl",
    "nearside": "Nearside: placement, scheduler, daemon",
    "local": "bound: all lines local, CPUs shared out ideally",
    "remote": "bound: all lines remote, CPUs shared out ideally",
}
BOUNDS = ("local", "remote")


def naive_pins(domains, machine):
    """The node of each domain, by a script that counts domains."""
    return [number % len(machine.nodes) for number in range(len(domains))]


def oracle_pins(domains, machine):
    """The node of each domain, by somebody who knows how much CPU time each will need: the most
    demanding one first, each to the node that has least to do for its CPUs."""
    load, pins = [0] * len(machine.nodes), [0] * len(domains)
    for number in sorted(range(len(domains)), key=lambda number: -domains[number]["work"]):
        pins[number] = min(
            range(len(load)), key=lambda node: (load[node] / machine.nodes[node].cpus, node)
        )
        load[pins[number]] += domains[number]["work"]
    return pins
