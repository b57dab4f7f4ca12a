"""The comparisons that docs/performance/comparison.md shows, and the text that is made of them."""

from dataclasses import dataclass
from pathlib import Path

from common import LabError

NEAR = ("stock", "balancing", "numad", "pin-naive", "pin-oracle", "nearside", "local")
STOCK_AND_US = ("stock", "balancing", "nearside")
# So far from the others that a spread would say nothing. Xen's guests take the host three times as
# long.
FAR = ("remote", "xen")


@dataclass(frozen=True)
class Part:
    """Trials: each of these contenders with each number of domains, at each ratio (else on the
    machine as it is), with each seed."""

    workload: str
    domains: tuple
    contenders: tuple
    machine: str = "x460-small"
    ratios: tuple = ()
    seeds: int = 1


# At most 150 guests. Pins that bind alike share one, as they do if all domains are alike. The
# requirements on Nearside come first.
SET = (
    Part("warehouse", (16,), NEAR, seeds=3),
    Part("warehouse", (16,), NEAR, ratios=(1.5, 2.0)),
    Part("skewed", (16,), NEAR, seeds=3),
    Part("warehouse", (8,), ("stock", "nearside"), "one-node", seeds=3),
    Part("sdet", (8,), ("stock", "nearside"), "one-node"),
    Part("sdet", (16,), NEAR),
    Part("dbench", (16,), NEAR),
    Part("warehouse", (4, 8, 12), NEAR),
    Part("sdet", (4, 8, 12), STOCK_AND_US),
    Part("dbench", (4, 8, 12), STOCK_AND_US),
    Part("stream", (16,), STOCK_AND_US),
    Part("lock", (16,), STOCK_AND_US),
    Part("hackbench", (16,), STOCK_AND_US),
    Part("text", (16,), STOCK_AND_US),
    Part("warehouse", (16,), FAR),
    Part("skewed", (16,), FAR),
    Part("sdet", (16,), FAR),
    Part("dbench", (16,), FAR),
    Part("warehouse", (16,), FAR, ratios=(1.5, 2.0)),
    Part("warehouse", (4, 8, 12), FAR),
)

# Requirements on Nearside: workload, domains, machine; speed relative to another contender.
REQUIRED = (
    ("warehouse", 16, "x460-small", 1.4, "stock"),
    ("warehouse", 16, "x460-small", 0.97, "local"),
    ("skewed", 16, "x460-small", 1.2, "pin-naive"),
    ("warehouse", 8, "one-node", 0.99, "stock"),
    ("sdet", 8, "one-node", 0.99, "stock"),
)
# .. and here ahead of all contenders that place domains.
AHEAD = ("warehouse", 16, "x460-small")

# Gains in throughput, in percent by number of domains: the NUMA patch set for Xen, 2006, on an IBM
# x460.
PUBLISHED = {
    "sdet": {4: 0.8, 8: 3.8, 12: 13.2, 16: 27.0},
    "dbench": {4: 0.0, 8: 7.8, 12: 24.5, 16: 50.0},
}
PUBLISHED_MACHINE = "x460-small"

# The program that writes the part of the page.
PROGRAM = "lab/compare --required"


@dataclass(frozen=True)
class Shown:
    """Everything that the page shows."""

    rows: dict  # by machine, workload and number of domains, by contender
    name_of: callable  # the name of a machine
    ratios: dict  # by name of machine
    names: dict  # contenders, in the order of the tables
    bounds: tuple
    figures: tuple  # heading, figure of a result, how it is shown
    curves: dict  # files by workload, machine and number of domains: plots over ratios

    def at(self, workload, domains, machine):
        """Rows by contender."""
        found = (
            row_of
            for key, row_of in self.rows.items()
            if (self.name_of(key[0]), *key[1:]) == (machine, workload, domains)
        )
        return next(found, {})


def without_ratio(name):
    """The machine that was given another ratio."""
    return name.partition(".ratio-")[0]


def spread(row):
    """The median, and from where to where where it was run more than once."""
    least, most = min(row.times_ms), max(row.times_ms)
    return f"{row.median_ms():,.0f} ms" + (
        f" ({least:,.0f} .. {most:,.0f})" if len(row.times_ms) > 1 else ""
    )


def times_as_fast(row_of, contender, other):
    """By the medians; None where one of the two was not measured."""
    return (
        row_of[other].median_ms() / row_of[contender].median_ms()
        if contender in row_of and other in row_of
        else None
    )


def entry(row_of, contender):
    """A time, so many times as fast as stock it is, and which part of the bound's speed."""
    if contender not in row_of:
        return ""
    text = spread(row_of[contender])
    if contender != "stock" and (times := times_as_fast(row_of, contender, "stock")):
        text += f", {times:.2f} x"
    if contender != "local" and (part := times_as_fast(row_of, contender, "local")):
        text += f", {part:.2f}"
    return text


def point(ratio, domains):
    """The heading of a column. On one node nothing is farther."""
    return f"{domains} domains" + (f", ratio {ratio:.1f}" if ratio > 1 else "")


def table(headings, lines):
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    for line in lines:
        yield f"| {' | '.join(line)} |"


def legend(made):
    yield from (
        "    lab/compare --required",
        "",
        f"Written by this command, of results of {made}.",
        "",
    )


def verdict(value, least):
    return "not measured" if value is None else "reached" if value >= least else "**not reached**"


def ahead(shown):
    """A line on the nearest contender, and whether Nearside is ahead of all contenders outside the
    spread."""
    row_of = shown.at(*AHEAD)
    others = [name for name in shown.names if name not in (*shown.bounds, "nearside")]
    measured, missing = (
        [name for name in others if name in row_of],
        [name for name in others if name not in row_of],
    )
    if "nearside" not in row_of or not measured:
        return "", verdict(None, 0)
    nearest_ms = min(row_of[name].median_ms() for name in measured)
    nearest = [name for name in measured if row_of[name].median_ms() == nearest_ms]
    names = " and ".join(f"`{name}`" for name in nearest)
    text = f"{spread(row_of['nearside'])}; the nearest: {names}, {spread(row_of[nearest[0]])}"
    if any(max(row_of["nearside"].times_ms) >= min(row_of[name].times_ms) for name in measured):
        return text, verdict(0, 1)
    return (
        (f"{text}; without {', '.join(missing)}", verdict(None, 0))
        if missing
        else (text, verdict(1, 1))
    )


def gain(row_of):
    """Of Nearside's throughput over stock's, in percent."""
    times = times_as_fast(row_of, "nearside", "stock")
    return None if times is None else 100 * (times - 1)


def requirements(shown):
    """A line for each."""
    against = {
        "stock": "times stock without NUMA balancing",
        "local": "of the bound",
        "pin-naive": "times the naive pins",
    }
    for workload, domains, machine, least, other in REQUIRED:
        times = times_as_fast(shown.at(workload, domains, machine), "nearside", other)
        where = f"{point(shown.ratios.get(machine, 1), domains)} on `{machine}`"
        what = f"`{workload}`, {where}: {least:g} {against[other]}"
        yield what, "" if times is None else f"{times:.3f}", verdict(times, least)
        if (workload, domains, machine) == AHEAD and other == "local":
            yield ".. ahead of every contender outside the spread", *ahead(shown)
    for workload, gains in PUBLISHED.items():
        domains = max(gains)
        reached = gain(shown.at(workload, domains, PUBLISHED_MACHINE))
        beside = f"beside the published +{gains[domains]:.0f} %"
        what = f"`{workload}`, {domains} domains, {beside}: the gain over stock"
        yield what, "" if reached is None else f"{reached:+.1f} %", verdict(reached, gains[domains])


def published(shown):
    """Published gains beside the gains reached here, by number of domains."""
    columns = max(PUBLISHED.values(), key=len)
    for workload, gains in PUBLISHED.items():
        yield f"`{workload}`, published", *(f"{gains[domains]:+.1f} %" for domains in columns)
        reached = [gain(shown.at(workload, domains, PUBLISHED_MACHINE)) for domains in columns]
        yield (
            f"`{workload}`, Nearside",
            *("" if each is None else f"{each:+.1f} %" for each in reached),
        )


def summary(shown):
    yield from ("**Required and reached**, by the medians:", "")
    yield from (*table(["required of Nearside", "reached", ""], requirements(shown)), "")
    yield from (
        "**Beside published gains** of NUMA support in Xen (a patch set of 2006): throughput on",
        "an IBM x460 of 4 nodes and 16 sockets. Both of its runs bound virtual CPUs to CPUs of",
        "their node, so that only the memory's place differed. Here: Nearside against stock Linux",
        f"without NUMA balancing on `{PUBLISHED_MACHINE}`, which models that machine with 2 CPUs a",
        "node and assumed latencies; stock may run a thread on any CPU. `sdet` is in the spirit of",
        "SDET, `dbench` a fixed load.",
        "",
    )
    headings = [f"{domains} domains" for domains in max(PUBLISHED.values(), key=len)]
    yield from (*table(["", *headings], published(shown)), "")


def tables(shown):
    """Of each workload: times, the curve over ratios, and counters."""
    yield from (
        "Time until all work is done: the median, with the range in parentheses where three seeds",
        "ran; `x`: speed relative to stock without NUMA balancing; last, speed relative to the",
        "bound. Ratio: latency of the farthest node's lines over that of local ones. Two",
        "contenders that bind alike share a trial.",
        "",
    )
    groups = {}
    for machine, workload, domains in shown.rows:
        name = shown.name_of(machine)
        groups.setdefault((workload, without_ratio(name)), []).append(
            (name, domains, shown.rows[machine, workload, domains])
        )
    for (workload, machine), points in groups.items():
        points.sort(key=lambda each: (each[1], shown.ratios[each[0]]))
        present = [
            contender
            for contender in shown.names
            if any(contender in row_of for *_, row_of in points)
        ]
        yield from (f"**{workload}** on `{machine}`:", "")
        headings = ["", *(point(shown.ratios[name], domains) for name, domains, _ in points)]
        yield from (
            *table(
                headings,
                ([shown.names[c], *(entry(row_of, c) for *_, row_of in points)] for c in present),
            ),
            "",
        )
        for domains in sorted({domains for _, domains, _ in points}):
            if file := shown.curves.get((workload, machine, domains)):
                alternative = f"{workload} with {domains} domains by the ratio of latencies: "
                alternative += "throughput of each contender against stock"
                yield from (f"![{alternative}]({Path(file).as_posix()})", "")
        own = [(domains, row_of) for name, domains, row_of in points if name == machine]
        if not own:
            continue
        domains, row_of = max(own, key=lambda each: each[0])
        counted = [
            contender
            for contender in present
            if contender in row_of and contender not in shown.bounds
        ]
        yield from (f"Counters of {domains} domains:", "")
        values = (
            [shown.names[c], *(show(row_of[c].median(figure)) for _, figure, show in shown.figures)]
            for c in counted
        )
        yield from (*table(["", *(heading for heading, *_ in shown.figures)], values), "")


def text_of(shown, made, missing):
    """The text. `made`: dates and sources of the results. `missing`: lines on points without
    results."""
    if not shown.rows:
        raise LabError("none of these comparisons has been made yet")
    parts = [*legend(made), *summary(shown), *tables(shown)]
    if missing:
        parts += [
            "Of the set, these have no result yet:",
            "",
            *(f"- {point}" for point in missing),
            "",
        ]
    return "\n".join(parts)
