"""A NUMA machine as QEMU arguments."""

from common import LabError


def parse_size(text):
    """512M -> bytes."""
    units = {"K": 10, "M": 20, "G": 30}
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "M")
    if unit not in units or not number.isdigit():
        raise LabError(f"a size is a number with K, M or G, as in 512M; got {text!r}")
    return int(number) << units[unit]


def spread(what, text, nodes, parse, share):
    """One value for each node: a list as given, or one value that `share` turns into a list."""
    values = text.split(",")
    if len(values) == 1:
        return share(parse(values[0]))
    if len(values) != nodes:
        raise LabError(f"--{what} names {len(values)} nodes, --nodes {nodes}")
    return [parse(value) for value in values]


def parse_count(text):
    if not text.isdigit():
        raise LabError(f"expected a number, got {text!r}")
    return int(text)


def distance_matrix(text, nodes):
    """See the examples in --help. A row is a node's distances to all nodes."""
    rows = [[parse_count(v) for v in row.split(",")] for row in text.split("/")]
    if len(rows) == 1 and len(rows[0]) <= 2:
        near, far = rows[0][0], rows[0][-1]
        rows = [
            [10 if i == j else near if i // 2 == j // 2 else far for j in range(nodes)]
            for i in range(nodes)
        ]
    if len(rows) != nodes or any(len(row) != nodes for row in rows):
        raise LabError(f"--distances must be one value, NEAR,FAR or {nodes} rows of {nodes} values")
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            if (value != 10) if i == j else not 10 < value <= 255:
                raise LabError(
                    f"distance {value} from node {i} to {j}: "
                    "10 to itself, 11 to 254 (255: unreachable) elsewhere"
                )
    return rows


def machine_arguments(options):
    """The machine as QEMU arguments, and its memory in bytes."""
    nodes = options.nodes
    memory = spread("memory", options.memory, nodes, parse_size, lambda size: [size] * nodes)

    def share_cpus(total):
        return [total // nodes + (node < total % nodes) for node in range(nodes)]

    cpus = spread("cpus", options.cpus, nodes, parse_count, share_cpus)
    if not memory[0] or not cpus[0]:
        raise LabError("node 0 needs memory and CPUs: the kernel boots there")
    total = sum(cpus)
    if any(count % options.smt for count in cpus):
        raise LabError(
            f"--smt {options.smt}: the CPUs of each node must be a multiple of it, not {cpus}"
        )

    # A socket for each node where the nodes are alike, else one for each core: a socket must not
    # cross nodes.
    with_cpus = [count for count in cpus if count]
    sockets = len(with_cpus) if len(set(with_cpus)) == 1 else total // options.smt
    arguments = [
        "-smp",
        f"{total},sockets={sockets},cores={total // sockets // options.smt},threads={options.smt}",
    ]

    first = 0
    for node in range(nodes):
        numa = f"node,nodeid={node}"
        if cpus[node]:
            numa += f",cpus={first}-{first + cpus[node] - 1}"
            first += cpus[node]
        if memory[node]:
            arguments += [
                "-object",
                f"memory-backend-memfd,id=memory{node},size={memory[node]},share=on",
            ]
            numa += f",memdev=memory{node}"
        arguments += ["-numa", numa]
    if nodes > 1:
        matrix = distance_matrix(options.distances, nodes)
        for source in range(nodes):
            for target in range(nodes):
                if source != target:
                    arguments += [
                        "-numa",
                        f"dist,src={source},dst={target},val={matrix[source][target]}",
                    ]
    return arguments, sum(memory)
