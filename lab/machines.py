"""Modelled machines: their files (lab/machines, README.md), which nearside reads, their limits
under emulation, and machines derived from them."""

import functools
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import nearside
from common import LAB, LabError

FOLDER = LAB / "machines"

# Limits of emulation. Files may state far more: they serve simulation, too. numatime.h has the
# plugin's limits; the number of a line has 32 bits in its caches.
MAX_CPUS = 64
MAX_NODES = 16
MAX_LINKS = 64
MAX_POINTS = 32
MAX_HOPS = 8
MAX_MIB = 254 << 10

# From this much memory on, q35 puts LOW_WITH_HOLE of it below 4 GiB and the rest above
# (hw/i386/pc_q35.c, pc_q35_init).
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
    """Joins two points: nodes, by their numbers, and switches, numbered behind them."""

    between: tuple
    latency_ns: float
    bandwidth_mb_per_s: float


@dataclass(frozen=True)
class Machine:
    """A machine in its file's units, with sizes in bytes. A bandwidth of 0 is unlimited."""

    name: str
    path: Path
    description: str
    insn_ps: int
    distance: list
    latency_ns: list
    cache: Cache
    prefetch: int
    last_level: Cache | None
    last_level_ns: float
    remote_cache: Cache | None
    remote_cache_ns: float
    nodes: list
    links: list
    routes: dict  # (node, higher node) -> the points on the route, both included

    def cpus(self):
        return sum(node.cpus for node in self.nodes)

    def memory_bytes(self):
        return sum(node.memory_bytes for node in self.nodes)

    def cpus_of(self, node):
        first = sum(each.cpus for each in self.nodes[:node])
        return range(first, first + self.nodes[node].cpus)

    def hops(self, source, target):
        """The links that a line passes from one node to another: (number, whether backwards)."""
        if source == target or not self.links:
            return []
        points = self.routes[min(source, target), max(source, target)]
        points = points if source < target else points[::-1]
        forwards = {link.between: (number, False) for number, link in enumerate(self.links)}
        backwards = {link.between[::-1]: (number, True) for number, link in enumerate(self.links)}
        return [(forwards | backwards)[step] for step in zip(points, points[1:])]

    def run_options(self):
        """The machine in the words of lab/run's options."""
        return {
            "nodes": len(self.nodes),
            "cpus": ",".join(str(node.cpus) for node in self.nodes),
            "memory": ",".join(f"{node.memory_bytes >> 20}M" for node in self.nodes),
            "distances": "/".join(",".join(map(str, row)) for row in self.distance),
        }

    def plugin_arguments(self):
        """The machine as numatime's arguments."""
        arguments, offset = [], 0
        for number, node in enumerate(self.nodes):
            ranges = self.guest_physical(offset, offset + node.memory_bytes)
            cpus = self.cpus_of(number)
            memory = "+".join(f"{begin:#x}-{end:#x}" for begin, end in ranges)
            arguments.append(f"node={memory}/{cpus[0]}-{cpus[-1]}")
            offset += node.memory_bytes
        rows = (":".join(map(str, row)) for row in self.latency_ns)
        arguments.append("latency_ns=" + "/".join(rows))
        bandwidths = (str(node.bandwidth_mb_per_s) for node in self.nodes)
        arguments.append("bandwidth_mb_per_s=" + ":".join(bandwidths))
        for link in self.links:
            ends = f"{link.between[0]}-{link.between[1]}"
            arguments.append(f"link={ends}:{link.bandwidth_mb_per_s}")
        for points in self.routes.values():
            both = (points, points[::-1])
            arguments += [f"route={'-'.join(map(str, route))}" for route in both]
        arguments.append(f"insn_ps={self.insn_ps}")
        arguments.append(f"cache={self.cache.bytes}:{self.cache.ways}")
        arguments.append(f"prefetch={self.prefetch}")
        if self.last_level:
            arguments.append(f"llc={self.last_level.bytes}:{self.last_level.ways}")
            arguments.append(f"llc_ns={self.last_level_ns}")
        if self.remote_cache:
            cache = self.remote_cache
            arguments.append(f"remote_cache={cache.bytes}:{cache.ways}")
            arguments.append(f"remote_cache_ns={self.remote_cache_ns}")
        return arguments

    def refuse_beyond(self, available_mib):
        """Refuses a machine beyond emulation, in this much memory of the host."""

        def error(place, message):
            return LabError(f"{self.path}: {place}: {message}")

        cpus = mib = 0
        for number, node in enumerate(self.nodes):
            cpus, mib = cpus + node.cpus, mib + (node.memory_bytes >> 20)
            if cpus > MAX_CPUS:
                message = f"{self.cpus()} CPUs in all cannot be emulated, at most {MAX_CPUS}"
                raise error(f"node {number}: cpus", message)
            if mib > min(available_mib, MAX_MIB):
                limit = f"{MAX_MIB} MiB"
                if available_mib < MAX_MIB:
                    limit = f"the {available_mib} MiB that this host has room for"
                total = self.memory_bytes() >> 20
                message = f"{total} MiB in all cannot be emulated, at most {limit}"
                raise error(f"node {number}: memory_mib", message)
        points = max((max(link.between) for link in self.links), default=0) + 1
        hops = max((len(route) - 1 for route in self.routes.values()), default=0)
        for what, count, limit, key in (
            ("nodes", len(self.nodes), MAX_NODES, "node"),
            ("links", len(self.links), MAX_LINKS, "link"),
            ("nodes and switches", points, MAX_POINTS, "link.between"),
            ("links on one route", hops, MAX_HOPS, "link.between"),
        ):
            if count > limit:
                raise error(key, f"{count} {what} cannot be emulated, at most {limit}")

    def guest_physical(self, begin, end):
        """Guest-physical ranges of these bytes of the machine's memory."""
        has_hole = self.memory_bytes() >= HOLE_FROM
        low = LOW_WITH_HOLE if has_hole else self.memory_bytes()
        ranges = [(begin, min(end, low))] if begin < low else []
        if end > low:
            ranges.append((max(begin, low) - low + ABOVE_HOLE, end - low + ABOVE_HOLE))
        return ranges


def names():
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def file(name):
    """The file of a machine: of lab/machines by its name, or any by its path."""
    return Path(name).resolve() if name.endswith(".toml") else FOLDER / f"{name}.toml"


def name_of(name):
    """The machine's name, of a name in lab/machines or a file's path."""
    return Path(name).stem if name.endswith(".toml") else name


def find(name):
    """Like `file`; refuses a machine that has no file."""
    path = file(name)
    if not path.exists():
        known = ", ".join(names())
        raise LabError(f"no machine {name!r}; known are {known}, or a file that ends in .toml")
    return path


@functools.cache
def read(path, _version):
    """The machine whose file is at `path`. A file that changes is read anew."""
    told = nearside.topology(path)
    costs = told["machine_file"]
    cache, level, remote = costs["cache"], costs["last_level"], costs.get("remote_cache")
    bandwidths = costs["memory_bandwidth_mb_per_s"]
    nodes = [
        Node(len(node["cpus"]), node["memory_bytes"], bandwidth)
        for node, bandwidth in zip(told["nodes"], bandwidths, strict=True)
    ]
    links = [
        Link(tuple(link["between"]), link["latency_ns"], link["bandwidth_mb_per_s"])
        for link in costs["links"]
    ]
    return Machine(
        name=path.stem,
        path=path,
        description=costs["description"],
        insn_ps=costs["insn_ps"],
        distance=[node["distances"] for node in told["nodes"]],
        latency_ns=costs["latency_ns"],
        cache=Cache(cache["bytes"], cache["ways"]),
        prefetch=cache["prefetch"],
        last_level=Cache(level["bytes"], level["ways"]) if level else None,
        last_level_ns=level["latency_ns"] if level else 0,
        remote_cache=Cache(remote["bytes"], remote["ways"]) if remote else None,
        remote_cache_ns=remote["latency_ns"] if remote else 0,
        nodes=nodes,
        links=links,
        routes={(route[0], route[-1]): tuple(route) for route in costs["routes"]},
    )


def load(name):
    """A machine of lab/machines by its name, or any by the path of its file."""
    path = find(name)
    try:
        about = os.stat(path)
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}") from None
    return read(path, (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns))


def ratio_of(machine):
    """Latency of a line from the farthest node over that of a local one."""
    return max(ns / row[node] for node, row in enumerate(machine.latency_ns) for ns in row)


def at_ratio(machine, ratio):
    """The machine with its farthest node's lines at `ratio` times a local one's latency. All extra
    latencies scale in proportion, and so do the distances that firmware states."""
    own_ns = [row[node] for node, row in enumerate(machine.latency_ns)]
    farthest = ratio_of(machine)
    if not machine.nodes[1:] or farthest <= 1:
        raise LabError(f"{machine.name}: no node is farther than another")
    for node, row in enumerate(machine.latency_ns):
        if min(row) < row[node]:
            nearest = row.index(min(row))
            raise LabError(
                f"{machine.name}: memory of node {nearest} is nearer to node {node} than its own: "
                "no ratio fits them"
            )
    by = (ratio - 1) / (farthest - 1)

    def distance(far):
        return 10 if far == 10 else min(max(round(10 + (far - 10) * by), 11), 254)

    note = f"the farthest node's lines at {ratio} times a local one's latency"
    latency_ns = [
        [round(own_ns[node] + (ns - own_ns[node]) * by, 3) for ns in row]
        for node, row in enumerate(machine.latency_ns)
    ]
    links = [replace(link, latency_ns=round(link.latency_ns * by, 3)) for link in machine.links]
    return replace(
        machine,
        description=f"{machine.description}; {note}",
        distance=[[distance(far) for far in row] for row in machine.distance],
        latency_ns=latency_ns,
        links=links,
    )


def text_of(machine):
    """The text of a machine's file."""
    own_ns = [row[node] for node, row in enumerate(machine.latency_ns)]
    # TOML knows JSON's escapes, but neither its pairs of surrogates nor DEL as it is.
    description = json.dumps(machine.description, ensure_ascii=False).replace("\x7f", "\\u007f")
    cache, level, remote = machine.cache, machine.last_level, machine.remote_cache
    lines = [f"description = {description}", f"insn_ps = {machine.insn_ps}"]
    lines.append(f"distance = {machine.distance}")
    lines.append(f"latency_ns = {own_ns if machine.links else machine.latency_ns}")
    lines += ["[cache]", f"kib = {cache.bytes >> 10}", f"ways = {cache.ways}"]
    lines.append(f"prefetch = {machine.prefetch}")
    if level:
        lines += ["[last_level]", f"kib = {level.bytes >> 10}", f"ways = {level.ways}"]
        lines.append(f"ns = {machine.last_level_ns}")
    if remote:
        lines += ["[remote_cache]", f"kib = {remote.bytes >> 10}", f"ways = {remote.ways}"]
        lines.append(f"ns = {machine.remote_cache_ns}")
    for node in machine.nodes:
        lines += ["[[node]]", f"cpus = {node.cpus}", f"memory_mib = {node.memory_bytes >> 20}"]
        lines.append(f"bandwidth_mb_per_s = {node.bandwidth_mb_per_s}")

    def named(points):
        ends = (point if point < len(machine.nodes) else f"switch {point}" for point in points)
        return json.dumps(list(ends))

    for link in machine.links:
        lines += ["[[link]]", f"between = {named(link.between)}"]
        lines.append(f"latency_ns = {link.latency_ns}")
        lines.append(f"bandwidth_mb_per_s = {link.bandwidth_mb_per_s}")
    for route in machine.routes.values():
        lines += ["[[route]]", f"between = {named((route[0], route[-1]))}"]
        lines.append(f"via = {named(route[1:-1])}")
    return "\n".join([*lines, ""])
