"""The homes of a comparison's domains: the nodes that a contender chose, the nodes that their
memory lies on, and the nodes whose CPUs used that memory, by the plugin's counters."""

import machines

# A node with less of a domain's memory than this share holds none of it: libraries, page tables.
MIN_SHARE = 0.01


def numbers(text):
    """The numbers in a list such as 0-2,5."""
    ranges = (word.partition("-") for word in text.split(","))
    return [
        number
        for first, _, last in ranges
        for number in range(int(first), int(last or first) + 1)
    ]


def chosen_nodes(result, number, node_of_cpu):
    """The nodes that the contender chose for a domain; none if it chose none. Xen names CPUs."""
    if homes := result.get("homes"):
        return homes[f"d{number}"]
    if not (placement := result.get("placement")):
        return []
    affinity = placement[number]["soft_affinity"]
    return [] if affinity == "all" else sorted({node_of_cpu[cpu] for cpu in numbers(affinity)})


def memory_nodes(domain):
    """The nodes with a domain's memory."""
    memory = {int(node): count for node, count in domain["memory_bytes"].items()}
    least = MIN_SHARE * sum(memory.values())
    return sorted(node for node, count in memory.items() if count > least)


def lines_by_user(result):
    """Lines that came from each node's memory (first index) to the CPUs of each node (second)."""
    begin, end = result["marks"]
    nodes = range(len(end["vcpus"][0]["fetched"]))
    lines = [[0 for _ in nodes] for _ in nodes]
    for before, after in zip(begin["vcpus"], end["vcpus"], strict=True):
        for node in nodes:
            lines[node][after["node"]] += after["fetched"][node] - before["fetched"][node]
    return lines


def percent(part, whole):
    return f"{100 * part / max(whole, 1):.1f} %"


def listed(nodes):
    return ", ".join(map(str, nodes)) or "none"


def row(result, number, lines, node_of_cpu):
    domain = result["domains"][number]
    own = memory_nodes(domain)
    memory = {int(node): count for node, count in domain["memory_bytes"].items()}
    chosen = chosen_nodes(result, number, node_of_cpu)
    by_user = [sum(lines[node][user] for node in own) for user in range(len(lines))]
    others = [
        f"d{other}"
        for other, it in enumerate(result["domains"])
        if other != number and set(own) & set(memory_nodes(it))
    ]
    there = sum(memory.get(node, 0) for node in chosen)
    columns = [
        f"d{number}",
        f"{sum(memory.values()) >> 20} MiB",
        listed(chosen),
        listed(own),
        percent(there, sum(memory.values())) if chosen else "",
        *(percent(count, sum(by_user)) for count in by_user),
        percent(sum(lines[node][node] for node in own), sum(by_user)),
        listed(others),
    ]
    return f"| {' | '.join(columns)} |"


def table(trial, result):
    """A row for each domain. Where domains share nodes, their lines are counted together."""
    lines = lines_by_user(result)
    node_of_cpu = [
        node
        for node, it in enumerate(machines.load(trial.machine).nodes)
        for _ in range(it.cpus)
    ]
    headings = [
        "domain",
        "memory",
        "chosen nodes",
        "memory on nodes",
        "of it on chosen nodes",
        *(f"lines to node {node}" for node in range(len(lines))),
        "local lines",
        "shares nodes with",
    ]
    yield f"Homes: {trial}"
    yield ""
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    for number in range(len(result["domains"])):
        yield row(result, number, lines, node_of_cpu)
    yield ""


def tables(results):
    found = [line for trial, it in results.items() if it for line in table(trial, it)]
    return "\n".join(["", *found]) if found else ""
