"""Machine files: what a modelled machine is, as TOML (lab/machines, README.md)."""

import heapq
import json
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from common import LAB, LabError

FOLDER = LAB / "machines"

# What a file may say. Far more than can be emulated: the files serve simulation, too.
MOST_CPUS = 4096
MOST_NODES = 64
MOST_LINKS = 1024

# What can be emulated: numatime.h has the plugin's limits; a line's number has 32 bits in its caches.
EMULATED_CPUS = 64
EMULATED_NODES = 16
EMULATED_LINKS = 64
EMULATED_POINTS = 32
EMULATED_HOPS = 8
EMULATED_MIB = 254 << 10

# q35 with this much memory puts only so much of it below 4 GiB, and the rest above (hw/i386/pc_q35.c, pc_q35_init).
HOLE_FROM = 0xB000_0000
LOW_WITH_HOLE = 0x8000_0000
ABOVE_HOLE = 1 << 32


@dataclass(frozen=True)
class Cache:
    bytes: int
    ways: int


@dataclass(frozen=True)
class Node:
    cpus: int
    memory_bytes: int
    bandwidth_mb_per_s: float


@dataclass(frozen=True)
class Link:
    """Between two points: nodes, by their numbers, and switches, numbered behind them."""

    between: tuple
    latency_ns: float
    bandwidth_mb_per_s: float


@dataclass(frozen=True)
class Machine:
    """All of it in the file's units, but sizes in bytes."""

    name: str
    file: "File"
    description: str
    insn_ps: int
    distance: list
    latency_ns: list
    cache: Cache
    prefetch: int
    last_level: Cache | None
    last_level_ns: float
    nodes: list
    links: list
    routes: dict  # (node, higher node) -> the points on the way, both included

    def cpus(self):
        return sum(node.cpus for node in self.nodes)

    def memory_bytes(self):
        return sum(node.memory_bytes for node in self.nodes)

    def cpus_of(self, node):
        first = sum(each.cpus for each in self.nodes[:node])
        return range(first, first + self.nodes[node].cpus)

    def hops(self, source, target):
        """The links, each with its direction, that a line passes from one node to another: (number, whether backwards)."""
        if source == target or not self.links:
            return []
        points = self.routes[min(source, target), max(source, target)]
        points = points if source < target else points[::-1]
        forwards = {link.between: (number, False) for number, link in enumerate(self.links)}
        backwards = {link.between[::-1]: (number, True) for number, link in enumerate(self.links)}
        return [(forwards | backwards)[step] for step in zip(points, points[1:])]

    def plugin_arguments(self):
        """As numatime takes them."""
        arguments, offset = [], 0
        for number, node in enumerate(self.nodes):
            ranges = "+".join(f"{a:#x}-{b:#x}" for a, b in self.guest_physical(offset, offset + node.memory_bytes))
            cpus = self.cpus_of(number)
            arguments.append(f"node={ranges}/{cpus[0]}-{cpus[-1]}")
            offset += node.memory_bytes
        arguments.append("latency_ns=" + "/".join(":".join(map(str, row)) for row in self.latency_ns))
        arguments.append("bandwidth_mb_per_s=" + ":".join(str(node.bandwidth_mb_per_s) for node in self.nodes))
        arguments += [f"link={link.between[0]}-{link.between[1]}:{link.bandwidth_mb_per_s}" for link in self.links]
        for points in self.routes.values():
            arguments += [f"route={'-'.join(map(str, way))}" for way in (points, points[::-1])]
        arguments.append(f"insn_ps={self.insn_ps}")
        arguments.append(f"cache={self.cache.bytes}:{self.cache.ways}")
        arguments.append(f"prefetch={self.prefetch}")
        if self.last_level:
            arguments.append(f"llc={self.last_level.bytes}:{self.last_level.ways}")
            arguments.append(f"llc_ns={self.last_level_ns}")
        return arguments

    def refuse_beyond(self, available_mib):
        """Ends where the machine is more than can be emulated, here in so much memory."""
        tables = [Table(self.file, node, "node", number) for number, node in enumerate(self.nodes)]
        cpus = mib = 0
        for table, node in zip(tables, self.nodes, strict=True):
            cpus, mib = cpus + node.cpus, mib + (node.memory_bytes >> 20)
            if cpus > EMULATED_CPUS:
                raise table.error("cpus", f"{self.cpus()} CPUs in all cannot be emulated, only {EMULATED_CPUS}")
            if mib > min(available_mib, EMULATED_MIB):
                limit = f"{EMULATED_MIB} MiB" if EMULATED_MIB < available_mib else f"the {available_mib} MiB that this host has room for"
                raise table.error("memory_mib", f"{self.memory_bytes() >> 20} MiB in all cannot be emulated, only {limit}")
        most_points = max((max(link.between) for link in self.links), default=0) + 1
        most_hops = max((len(points) - 1 for points in self.routes.values()), default=0)
        for what, count, limit, table, key in (
            ("nodes", len(self.nodes), EMULATED_NODES, tables[-1], None),
            ("links", len(self.links), EMULATED_LINKS, Table(self.file, {}, "link", len(self.links) - 1), None),
            ("nodes and switches", most_points, EMULATED_POINTS, Table(self.file, {}, "link"), "between"),
            ("links on one way", most_hops, EMULATED_HOPS, Table(self.file, {}, "link"), "between"),
        ):
            if count > limit:
                raise table.error(key, f"{count} {what} cannot be emulated, only {limit}")

    def guest_physical(self, begin, end):
        """Where these bytes of the machine's memory lie in the guest's physical address space."""
        low = self.memory_bytes() if self.memory_bytes() < HOLE_FROM else LOW_WITH_HOLE
        ranges = [(begin, min(end, low))] if begin < low else []
        if end > low:
            ranges.append((max(begin, low) - low + ABOVE_HOLE, end - low + ABOVE_HOLE))
        return ranges


# Strings and comments of TOML; strings that may have several lines are group 1.
STRINGS = re.compile(
    r'("""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5})"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*",
    re.DOTALL,
)


class File:
    """A file's text, which knows where each key stands, for messages that name file, line and key."""

    def __init__(self, path, text):
        self.path = path
        self.lines = {}  # (table, which of that name, key) -> line; without a key: the table's header
        table, number, depth, seen = None, 0, 0, {}
        # What stands in strings of several lines is no header and no key. Only "\n" ends a line, not all that splitlines() knows.
        plain = STRINGS.sub(lambda found: '""' + "\n" * found[1].count("\n") if found[1] else found[0], text)
        for line, content in enumerate(plain.split("\n"), 1):
            code = STRINGS.sub("", content)
            header = re.match(r"\s*\[+\s*[\"']?([\w-]+)[\"']?\s*\]+\s*(#.*)?$", content)
            key = re.match(r"""\s*["']?([\w-]+)["']?\s*(?:\.\s*["']?([\w-]+)["']?\s*)?=""", content)
            # Within brackets that earlier lines opened is a value.
            if depth == 0 and header:
                table = header[1]
                number = seen[table] = seen.get(table, -1) + 1
                self.lines[table, number, None] = line
            elif depth == 0 and key:
                self.lines.setdefault((table, number, key[1]), line)
                if key[2]:
                    self.lines.setdefault((key[1], 0, key[2]), line)
            if not header or depth:
                depth += sum(code.count(c) for c in "[{") - sum(code.count(c) for c in "]}")

    def line_of(self, table, number, key):
        """The line of a key, else of its table, which may be an inline one."""
        own = ((table, number, None), (None, 0, table)) if table else ((key, 0, None),)
        return next((self.lines[place] for place in ((table, number, key), *own) if place in self.lines), 1)


class Table:
    """A table of the file: top-level keys, or those of [header]."""

    def __init__(self, file, values, header=None, number=0):
        self.file, self.values, self.header, self.number = file, values, header, number

    def error(self, key, message):
        names = ".".join(name for name in (self.header, key) if name)
        return LabError(f"{self.file.path}:{self.file.line_of(self.header, self.number, key)}: {names}: {message}")

    def refuse_unknown(self, *known):
        for key in self.values:
            if key not in known:
                raise self.error(key, f"unknown key; known are {', '.join(known)}")

    def need(self, key):
        if key not in self.values:
            raise self.error(key, "missing")
        return self.values[key]

    def number_at(self, key, least, most, unit, *, whole=False, default=None):
        value = self.need(key) if default is None else self.values.get(key, default)
        if not is_number(value, whole) or not least <= value <= most:
            raise self.error(key, f"a {'whole ' if whole else ''}number from {least:,} to {most:,} {unit} is expected, not {value!r}")
        return value

    def numbers_at(self, key, count, least, most, unit):
        values = self.need(key)
        if not isinstance(values, list) or len(values) != count:
            raise self.error(key, f"a list of {count} numbers in {unit} is expected, one for each node")
        for node, value in enumerate(values):
            if not is_number(value) or not least <= value <= most:
                raise self.error(key, f"for node {node}, a number from {least:,} to {most:,} {unit} is expected, not {value!r}")
        return values

    def matrix_at(self, key, nodes, is_good, expected):
        rows = self.need(key)
        if not isinstance(rows, list) or len(rows) != nodes or any(not isinstance(r, list) or len(r) != nodes for r in rows):
            raise self.error(key, f"{nodes} rows of {nodes} numbers are expected, as there are {nodes} nodes")
        for i, row in enumerate(rows):
            for j, value in enumerate(row):
                if not is_number(value) or not is_good(i, j, value):
                    raise self.error(key, f"{value!r} from node {i} to node {j}: {expected}")
        return rows

    def tables_at(self, key):
        """The tables [[key]]."""
        values = self.values.get(key, [])
        if not isinstance(values, list) or not all(isinstance(v, dict) for v in values):
            raise self.error(key, f"tables are expected: [[{key}]]")
        return [Table(self.file, v, key, number) for number, v in enumerate(values)]

    def table_at(self, key, *known):
        """The one table [key], or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"a table is expected: [{key}]")
        table = Table(self.file, value, key)
        table.refuse_unknown(*known)
        return table


def is_number(value, whole=False):
    return isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)


def read_cache(table):
    kib, ways = table.number_at("kib", 1, 1 << 20, "KiB", whole=True), table.number_at("ways", 1, 64, "ways", whole=True)
    sets = kib * 1024 // 64 // ways
    if sets & (sets - 1) or sets * 64 * ways != kib * 1024:
        raise table.error("kib", f"{kib} KiB in {ways} ways of lines of 64 bytes are {kib * 16 / ways:g} sets; a power of two is expected")
    return Cache(kib * 1024, ways)


def read_bandwidth(table):
    """0: unlimited. Else as firmware and kernel can tell of it, in whole MB/s, of which less than one would be none."""
    value = table.values.get("bandwidth_mb_per_s", 0)
    if not is_number(value) or not (value == 0 or 1 <= value <= 10**6):
        expected = "0 (unlimited) or a number from 1 to 1,000,000 MB/s is expected"
        raise table.error("bandwidth_mb_per_s", f"{expected}, not {value!r}")
    return value


def read_node(table):
    table.refuse_unknown("cpus", "memory_mib", "bandwidth_mb_per_s")
    return Node(
        table.number_at("cpus", 1, MOST_CPUS, "CPUs", whole=True),
        # Less does not boot.
        table.number_at("memory_mib", 128, 10**9, "MiB", whole=True) << 20,
        read_bandwidth(table),
    )


def read_nodes(top):
    nodes = []
    for table in top.tables_at("node"):
        nodes.append(read_node(table))
        if (cpus := sum(node.cpus for node in nodes)) > MOST_CPUS:
            raise table.error("cpus", f"at most {MOST_CPUS} CPUs in all are expected, not {cpus} or more")
    if not 1 <= len(nodes) <= MOST_NODES:
        raise top.error("node", f"1 to {MOST_NODES} tables [[node]] are expected, not {len(nodes)}")
    return nodes


class Points:
    """Where links end: the nodes, by number, and switches, by names that appear in links."""

    def __init__(self, nodes):
        self.nodes, self.switches = nodes, []

    def name(self, point):
        return f"node {point}" if point < self.nodes else self.switches[point - self.nodes]

    def read(self, table, key, value, *, may_be_new=False):
        if isinstance(value, str) and (may_be_new or value in self.switches):
            if value not in self.switches:
                self.switches.append(value)
            return self.nodes + self.switches.index(value)
        if not is_number(value, whole=True) or not 0 <= value < self.nodes:
            raise table.error(key, f"a node from 0 to {self.nodes - 1} or the name of a switch is expected, not {value!r}")
        return value

    def read_list(self, table, key, *, may_be_new=False):
        values = table.need(key)
        if not isinstance(values, list):
            raise table.error(key, f"a list of nodes and names of switches is expected, not {values!r}")
        return tuple(self.read(table, key, value, may_be_new=may_be_new) for value in values)


def read_link(table, points, earlier):
    table.refuse_unknown("between", "latency_ns", "bandwidth_mb_per_s")
    if len(earlier) == MOST_LINKS:
        raise table.error("between", f"at most {MOST_LINKS} links are expected")
    between = points.read_list(table, "between", may_be_new=True)
    if len(set(between)) != 2 or len(between) != 2:
        raise table.error("between", "two different ends are expected")
    if any(set(between) == set(link.between) for link in earlier):
        raise table.error("between", "there is a link between these two already")
    return Link(
        between,
        table.number_at("latency_ns", 0, 10**6, "ns"),
        read_bandwidth(table),
    )


def shortest_ways(links, source):
    """To each point that can be reached the way that takes least time; of equals the one over fewest links, then over the points that
    are named first: (latency, links, points)."""
    best, heap = {}, [(0, 0, (source,))]
    while heap:
        latency, count, way = heapq.heappop(heap)
        if way[-1] in best:
            continue
        best[way[-1]] = (latency, count, way)
        for link in links:
            if way[-1] in link.between:
                other = link.between[way[-1] == link.between[0]]
                heapq.heappush(heap, (latency + link.latency_ns, count + 1, (*way, other)))
    return best


def read_routes(top, points, links):
    """The way between each two nodes: the shortest, or the one that a [[route]] gives."""
    routes = {}
    for source in range(points.nodes):
        ways = shortest_ways(links, source)
        for target in range(source + 1, points.nodes):
            if target not in ways:
                raise Table(top.file, {}, "link").error("between", f"no link leads from node {source} to node {target}")
            routes[source, target] = ways[target][2]
    joined, given = {frozenset(link.between) for link in links}, set()
    for table in top.tables_at("route"):
        table.refuse_unknown("between", "via")
        ends, via = points.read_list(table, "between"), points.read_list(table, "via")
        if len(ends) != 2 or ends[0] == ends[1] or max(ends) >= points.nodes:
            raise table.error("between", "two different nodes are expected")
        if frozenset(ends) in given:
            raise table.error("between", "there is a route between these two already")
        given.add(frozenset(ends))
        way = (ends[0], *via, ends[1])
        if len(set(way)) < len(way):
            raise table.error("via", f"the way comes to {points.name(next(point for point in way if way.count(point) > 1))} twice")
        for step in zip(way, way[1:]):
            if frozenset(step) not in joined:
                raise table.error("via", f"there is no link between {points.name(step[0])} and {points.name(step[1])}")
        routes[min(ends), max(ends)] = way if ends[0] < ends[1] else way[::-1]
    return routes


def latency_over(links, own_ns, routes):
    """From each node to each: the latency of the memory there, and of each link on the way."""
    of_link = {frozenset(link.between): link.latency_ns for link in links}
    nodes = range(len(own_ns))

    def total(i, j):
        way = routes.get((min(i, j), max(i, j)), ())
        return own_ns[j] + sum(of_link[frozenset(step)] for step in zip(way, way[1:]))

    return [[total(i, j) for j in nodes] for i in nodes]


def parse(path, text):
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise LabError(f"{path}: brackets within brackets, too many") from None
    except tomllib.TOMLDecodeError as error:
        if found := re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error)):
            raise LabError(f"{path}:{found[2]}: {found[1]}, in column {found[3]}") from None
        raise LabError(f"{path}:{len(text.splitlines())}: {error}") from None
    top = Table(File(path, text), values)
    top.refuse_unknown("description", "insn_ps", "distance", "latency_ns", "cache", "last_level", "node", "link", "route")
    description = values.get("description", "")
    if not isinstance(description, str):
        raise top.error("description", "a text is expected")
    nodes = read_nodes(top)
    cache = top.table_at("cache", "kib", "ways", "prefetch")
    if not cache:
        raise top.error("cache", "missing")
    last_level = top.table_at("last_level", "kib", "ways", "ns")
    points, links, routes = Points(len(nodes)), [], {}
    for table in top.tables_at("link"):
        links.append(read_link(table, points, links))
    if links:
        routes = read_routes(top, points, links)
        latency_ns = latency_over(links, top.numbers_at("latency_ns", len(nodes), 0.001, 10**6, "ns"), routes)
    else:
        if top.tables_at("route"):
            raise top.error("route", "there are no links")
        latency_ns = top.matrix_at("latency_ns", len(nodes), lambda _i, _j, v: 0.001 <= v <= 10**6, "0.001 to 1,000,000 ns is expected")
    return Machine(
        name=Path(path).stem,
        file=top.file,
        description=description,
        insn_ps=top.number_at("insn_ps", 1, 10**6, "ps", whole=True),
        distance=top.matrix_at(
            "distance",
            len(nodes),
            lambda i, j, v: isinstance(v, int) and (v == 10 if i == j else 10 < v < 255),
            "10 to itself, 11 to 254 elsewhere, is expected (10: as far as local memory)",
        ),
        latency_ns=latency_ns,
        cache=read_cache(cache),
        prefetch=cache.number_at("prefetch", 1, 64, "times", whole=True, default=1),
        last_level=read_cache(last_level) if last_level else None,
        last_level_ns=last_level.number_at("ns", 0, 10**6, "ns") if last_level else 0,
        nodes=nodes,
        links=links,
        routes=routes,
    )


def names():
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def file(name):
    """The file of a machine of lab/machines, named, or any by its path."""
    return Path(name).resolve() if name.endswith(".toml") else FOLDER / f"{name}.toml"


def name_of(name):
    """What it is called, of lab/machines or a file."""
    return Path(name).stem if name.endswith(".toml") else name


def ratio_of(machine):
    """So many times as long as a local one a line from the farthest node takes."""
    return max(ns / row[node] for node, row in enumerate(machine.latency_ns) for ns in row)


def at_ratio(machine, ratio):
    """The machine with latencies such that a line from its farthest node takes `ratio` times as long as a local one: what each takes
    more than a local one grows, or shrinks, in proportion, and so does what its firmware says of distances."""
    own_ns = [row[node] for node, row in enumerate(machine.latency_ns)]
    farthest = ratio_of(machine)
    if not machine.nodes[1:] or farthest <= 1:
        raise LabError(f"{machine.name}: no node is farther than another")
    for node, row in enumerate(machine.latency_ns):
        if min(row) < row[node]:
            nearest = row.index(min(row))
            raise LabError(f"{machine.name}: memory of node {nearest} is nearer to node {node} than its own: no ratio fits them")
    by = (ratio - 1) / (farthest - 1)
    return replace(
        machine,
        description=f"{machine.description}; the farthest node's lines at {ratio} times a local one's latency",
        distance=[[10 if far == 10 else min(max(round(10 + (far - 10) * by), 11), 254) for far in row] for row in machine.distance],
        latency_ns=[[round(own_ns[i] + (ns - own_ns[i]) * by, 3) for ns in row] for i, row in enumerate(machine.latency_ns)],
        links=[replace(link, latency_ns=round(link.latency_ns * by, 3)) for link in machine.links],
    )


def text_of(machine):
    """A machine as a file."""
    own_ns = [row[node] for node, row in enumerate(machine.latency_ns)]
    # TOML knows JSON's escapes, but neither its pairs of surrogates nor DEL as it is.
    description = json.dumps(machine.description, ensure_ascii=False).replace("\x7f", "\\u007f")
    lines = [f"description = {description}", f"insn_ps = {machine.insn_ps}"]
    lines += [f"distance = {machine.distance}", f"latency_ns = {own_ns if machine.links else machine.latency_ns}"]
    lines += ["[cache]", f"kib = {machine.cache.bytes >> 10}", f"ways = {machine.cache.ways}", f"prefetch = {machine.prefetch}"]
    if machine.last_level:
        lines += ["[last_level]", f"kib = {machine.last_level.bytes >> 10}", f"ways = {machine.last_level.ways}"]
        lines.append(f"ns = {machine.last_level_ns}")
    for node in machine.nodes:
        lines += ["[[node]]", f"cpus = {node.cpus}", f"memory_mib = {node.memory_bytes >> 20}"]
        lines.append(f"bandwidth_mb_per_s = {node.bandwidth_mb_per_s}")

    def named(points):
        return json.dumps([point if point < len(machine.nodes) else f"switch {point}" for point in points])

    for link in machine.links:
        lines += ["[[link]]", f"between = {named(link.between)}", f"latency_ns = {link.latency_ns}"]
        lines.append(f"bandwidth_mb_per_s = {link.bandwidth_mb_per_s}")
    for way in machine.routes.values():
        lines += ["[[route]]", f"between = {named((way[0], way[-1]))}", f"via = {named(way[1:-1])}"]
    return "\n".join([*lines, ""])


def load(name):
    """A machine of lab/machines by its name, or any by the path of its file."""
    path = file(name)
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise LabError(f"no machine {name!r}; there are {', '.join(names())}, or name a file that ends in .toml") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{path}: {error}") from None
    return parse(path, text)
