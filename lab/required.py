"""The comparisons that docs/performance/comparison.md shows, and the text that is made of them."""

import re
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path

import page
from common import LabError

NEAR = ("stock", "balancing", "numad", "pin-naive", "pin-oracle", "nearside", "local")
STOCK_AND_US = ("stock", "balancing", "nearside")
PINS = ("pin-naive", "pin-oracle")
# So far from the others that a spread would say nothing. Xen's guests take the host three times as
# long.
FAR = ("remote", "xen")


@dataclass(frozen=True)
class Part:
    """Trials: each of these contenders with each number of domains, at each ratio (else on the
    machine as it is), with each seed in each build of the guest."""

    workload: str
    domains: tuple
    contenders: tuple
    machine: str = "x460-small"
    ratios: tuple = ()
    seeds: int = 1
    builds: int = 1


def repeated(workload, *contenders, domains=16, machine="x460-small"):
    """Enough runs for a ratio with two decimals."""
    return Part(workload, (domains,), contenders, machine, seeds=3, builds=2)


# So many runs, of three seeds and two builds, are behind a ratio with two decimals.
FIRM_RUNS = 6

# At most 320 guests: three seeds and two builds are six guests in place of one. Pins that bind
# alike share one, as they do if all domains are alike. The requirements on Nearside come first. A
# trial of several parts runs once.
SET = (
    repeated("warehouse", *STOCK_AND_US, *PINS),
    repeated("skewed", *STOCK_AND_US, *PINS),
    repeated("sdet", "stock", "nearside", *PINS),
    *(
        repeated(workload, "stock", "nearside")
        for workload in (
            "dbench",
            "stream",
            "lock",
            "hackbench",
            "text",
            "crowd",
            "server",
            "server-apart",
        )
    ),
    repeated("warehouse", "stock", "nearside", domains=12),
    repeated("warehouse", "stock", "nearside", domains=8, machine="one-node"),
    repeated("sdet", "stock", "nearside", domains=8, machine="one-node"),
    Part("warehouse", (12, 16), NEAR),
    Part("warehouse", (16,), NEAR, ratios=(1.5, 2.0)),
    Part("skewed", (16,), NEAR),
    Part("sdet", (16,), NEAR),
    Part("dbench", (16,), NEAR),
    Part("warehouse", (4, 8), NEAR),
    Part("sdet", (4, 8, 12), STOCK_AND_US),
    Part("dbench", (4, 8, 12), STOCK_AND_US),
    Part("stream", (16,), STOCK_AND_US),
    Part("lock", (16,), (*STOCK_AND_US, "queue")),
    Part("hackbench", (16,), STOCK_AND_US),
    Part("text", (16,), STOCK_AND_US),
    Part("warehouse", (16,), FAR),
    Part("skewed", (16,), FAR),
    Part("sdet", (16,), FAR),
    Part("dbench", (16,), FAR),
    Part("warehouse", (16,), FAR, ratios=(1.5, 2.0)),
    Part("warehouse", (4, 8, 12), FAR),
)


@dataclass(frozen=True)
class Requirement:
    """On Nearside's speed relative to that of the fastest of these."""

    workload: str
    least: float
    others: tuple
    domains: int = 16
    machine: str = "x460-small"
    is_ahead: bool = False  # faster, not as fast

    def place(self):
        return self.workload, self.domains, self.machine


REQUIRED = (
    Requirement("warehouse", 1.4, ("stock",)),
    Requirement("warehouse", 0.985, ("local",)),
    Requirement("warehouse", 0.985, ("local",), domains=12),
    Requirement("skewed", 1.2, ("pin-naive",)),
    Requirement("skewed", 1, ("balancing",)),
    Requirement("sdet", 1, PINS, is_ahead=True),
    *(
        Requirement(workload, 1, ("stock",))
        for workload in ("sdet", "dbench", "stream", "lock", "hackbench", "text", "crowd")
    ),
    Requirement("warehouse", 0.995, ("stock",), 8, "one-node"),
    Requirement("sdet", 0.995, ("stock",), 8, "one-node"),
)
# .. and here ahead of all contenders that place domains.
AHEAD = ("warehouse", 16, "x460-small")
# .. and requests here wait no longer than under stock, by this percentile.
SERVED = (("server", 16, "x460-small"), ("server-apart", 16, "x460-small"))
SERVED_PERCENTILE = "p99"

# README quotes Nearside's speed relative to these, by the least of three measures.
HEADLINE, HEADLINE_OTHERS = ("warehouse", 16, "x460-small"), ("stock", "balancing")

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

    def is_firm(self, row_of, *contenders):
        """Whether a ratio of these has two decimals. Bounds repeat almost exactly."""
        return all(
            name in self.bounds or len(row_of[name].times_ms) >= FIRM_RUNS for name in contenders
        )

    def is_one_run(self, row_of, contender):
        return contender not in self.bounds and len(row_of[contender].times_ms) == 1


def without_ratio(name):
    """The machine that was given another ratio."""
    return name.partition(".ratio-")[0]


# -- ratios --


def spread(row):
    """The median, and from where to where where it was run more than once."""
    least, most = min(row.times_ms), max(row.times_ms)
    return f"{row.median_ms():,.0f} ms" + (
        f" ({least:,.0f} .. {most:,.0f})" if len(row.times_ms) > 1 else ""
    )


# Three measures of the same work, of a contender's row.
last_done_ms = methodcaller("median_ms")
mean_domain_ms = methodcaller("median_mean_domain_ms")
cpu_time_s = methodcaller("median_cpu_time_s")
MEASURES = {
    "last domain done": last_done_ms,
    "mean domain": mean_domain_ms,
    "CPU time for the same work": cpu_time_s,
}


def times_as_fast(row_of, contender, other, measure=last_done_ms):
    """By the medians; None where one of the two was not measured."""
    return (
        measure(row_of[other]) / measure(row_of[contender])
        if contender in row_of and other in row_of
        else None
    )


def ratio(shown, row_of, contender, other, measure=last_done_ms):
    """As many decimals as the runs behind it allow; None where one of the two was not measured."""
    times = times_as_fast(row_of, contender, other, measure)
    if times is None:
        return None
    return f"{times:.{2 if shown.is_firm(row_of, contender, other) else 1}f}"


def entry(shown, row_of, contender):
    """A time, so many times as fast as stock it is, and which part of the bound's speed."""
    if contender not in row_of:
        return ""
    text = spread(row_of[contender])
    if contender != "stock" and (times := ratio(shown, row_of, contender, "stock")):
        text += f", {times} x"
    if contender != "local" and (part := ratio(shown, row_of, contender, "local")):
        text += f", {part}"
    return text


def marked(shown, row_of, contender):
    """An entry that says where it is of a single run."""
    text = entry(shown, row_of, contender)
    return f"{text}; one run" if text and shown.is_one_run(row_of, contender) else text


def is_all_one_run(shown, row_of):
    return all(shown.is_one_run(row_of, name) for name in row_of if name not in shown.bounds)


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


# -- the scheduler that made the results --


# A line that people write into the rest of the page: a change of the scheduler alters no decision.
CARRIED = re.compile(r"^Carried over to `(\w+)`: \S", re.MULTILINE)
MADE_BY = re.compile(r"^Scheduler of these results: (.+)\.$", re.MULTILINE)


def scheduler_line(shown):
    """The digests of the sources with which Nearside's results were made."""
    made_by = {
        result.get("scheduler_sources", "unknown")
        for row_of in shown.rows.values()
        if "nearside" in row_of
        for result in row_of["nearside"].results
    }
    if made_by:
        named = ", ".join(f"`{digest}`" for digest in sorted(made_by))
        yield from (f"Scheduler of these results: {named}.", "")


def check_scheduler(path, present):
    """Refuses a page whose results are of another scheduler than the present one, by the digest of
    its sources."""
    before, written, after = page.Part(path, PROGRAM).split()
    found = MADE_BY.search(written)
    made_by = re.findall(r"`(\w+)`", found[1]) if found else []
    if made_by == [present] or any(present in CARRIED.findall(text) for text in (before, after)):
        return
    raise LabError(
        f"{path}: its results are of the scheduler {', '.join(made_by) or '(none named)'}, but the "
        f"sources are {present}. Run `{PROGRAM}`. If the change of the scheduler alters no "
        f"decision, a line outside of the part that this writes may say so: "
        f"Carried over to `{present}`: REASON"
    )


# -- requirements --


def verdict(value, least):
    return "not measured" if value is None else "reached" if value >= least else "**not reached**"


def is_outside_spread(row, others):
    return max(row.times_ms) < min(time_ms for other in others for time_ms in other.times_ms)


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
    if not is_outside_spread(row_of["nearside"], [row_of[name] for name in measured]):
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


# Words for the others of a requirement: where it is a number of times their speed, and a name.
AGAINST = {
    ("stock",): ("times stock without NUMA balancing", "stock without NUMA balancing"),
    ("balancing",): ("times stock with NUMA balancing", "stock with NUMA balancing"),
    ("local",): ("of the bound", "the bound"),
    ("pin-naive",): ("times the naive pins", "the naive pins"),
    PINS: ("times the best pins", "the best pins"),
}


def required_words(requirement):
    times, name = AGAINST[requirement.others]
    if requirement.is_ahead:
        return f"ahead of {name}"
    if requirement.least == 1:
        return f"at least as fast as {name}"
    return f"{requirement.least:g} {times}"


def judged(shown, requirement):
    """What was reached, and the verdict by the medians."""
    row_of = shown.at(*requirement.place())
    if any(name not in row_of for name in ("nearside", *requirement.others)):
        return "", verdict(None, 0)
    best = min(requirement.others, key=lambda name: row_of[name].median_ms())
    times = times_as_fast(row_of, "nearside", best)
    # The third decimal tells on which side of a requirement a ratio is.
    text = f"{times:.3f}" if shown.is_firm(row_of, "nearside", best) else f"{times:.1f}"
    if shown.is_one_run(row_of, "nearside") or shown.is_one_run(row_of, best):
        text += "; one run"
    if not requirement.is_ahead:
        return text, verdict(times, requirement.least)
    others = [row_of[name] for name in requirement.others]
    where = "outside" if is_outside_spread(row_of["nearside"], others) else "within"
    return f"{text}, {where} the spread", "reached" if times > requirement.least else verdict(0, 1)


def served(shown, place):
    """Latencies of requests, and whether Nearside's is at most stock's."""
    row_of = shown.at(*place)
    latency_us = {
        name: found[SERVED_PERCENTILE]
        for name in ("nearside", "stock")
        if name in row_of and (found := row_of[name].latency_us())
    }
    if len(latency_us) < 2:
        return "", verdict(None, 0)
    text = f"{latency_us['nearside']:,.0f} us; stock: {latency_us['stock']:,.0f} us"
    return text, verdict(latency_us["stock"], latency_us["nearside"])


def requirements(shown):
    """A line for each."""
    for requirement in REQUIRED:
        workload, domains, machine = place = requirement.place()
        where = f"{point(shown.ratios.get(machine, 1), domains)} on `{machine}`"
        yield f"`{workload}`, {where}: {required_words(requirement)}", *judged(shown, requirement)
        if place == AHEAD and requirement.others == ("local",):
            yield ".. ahead of every contender outside the spread", *ahead(shown)
    for place in SERVED:
        workload, domains, machine = place
        where = f"{point(shown.ratios.get(machine, 1), domains)} on `{machine}`"
        what = f"`{workload}`, {where}: {SERVED_PERCENTILE} of the latency at most stock's"
        yield what, *served(shown, place)
    for workload, gains in PUBLISHED.items():
        domains = max(gains)
        reached = gain(shown.at(workload, domains, PUBLISHED_MACHINE))
        beside = f"beside the published +{gains[domains]:.0f} %"
        what = f"`{workload}`, {domains} domains, {beside}: the gain over stock"
        yield what, "" if reached is None else f"{reached:+.1f} %", verdict(reached, gains[domains])


def headline(shown):
    """Nearside's speed relative to others by each measure, and by the least of them."""
    row_of = shown.at(*HEADLINE)
    for other in HEADLINE_OTHERS:
        if "nearside" not in row_of or other not in row_of:
            continue
        ratios = [
            ratio(shown, row_of, "nearside", other, measure) for measure in MEASURES.values()
        ]
        least = min(ratios, key=float)
        one_run = any(shown.is_one_run(row_of, name) for name in ("nearside", other))
        yield shown.names[other], *ratios, f"**{least}**" + ("; one run" if one_run else "")


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
    if lines := list(headline(shown)):
        workload, domains, machine = HEADLINE
        yield from (
            f"**How many times as fast Nearside is**, `{workload}` with {domains} domains on "
            f"`{machine}`, by the medians.",
            "README quotes the least, which is the most conservative:",
            "",
        )
        yield from (*table(["against", *MEASURES, "the least"], lines), "")
    yield from ("**Required and reached**, by the medians:", "")
    yield from (*table(["required of Nearside", "reached", ""], requirements(shown)), "")
    yield from (
        "**Beside published gains** of NUMA support in Xen (a patch set of 2006): throughput on",
        "an IBM x460 of 4 nodes and 16 sockets. Both of its runs bound virtual CPUs to CPUs of",
        "their node, so that only the memory's place differed. Here: Nearside against stock Linux",
        f"without NUMA balancing on `{PUBLISHED_MACHINE}`, which models that machine with 2 CPUs a",
        "node and assumed latencies; stock may run a thread on any CPU. `sdet` is in the spirit of",
        "SDET, `dbench` a fixed load. With fewer than 16 domains there is one run of each.",
        "",
    )
    headings = [f"{domains} domains" for domains in max(PUBLISHED.values(), key=len)]
    yield from (*table(["", *headings], published(shown)), "")


# -- workloads --


def together(values):
    return ", ".join(sorted(set(values)))


def commits(points):
    """The commits and the dates of the results of these points."""
    results = [
        (contender, result)
        for *_, row_of in points
        for contender, row in row_of.items()
        for result in row.results
    ]
    us = together(result["commit"] for name, result in results if name == "nearside")
    others = together(result["commit"] for name, result in results if name != "nearside")
    days = sorted({result["ended"][:10] for _, result in results})
    told = [f"Nearside at {us}"] if us else []
    told += [f"the others at {others}"] if others else []
    when = f"{days[0]} to {days[-1]}" if days[1:] else days[0]
    line = f"{'; '.join(told)} ({when})."
    return line[0].upper() + line[1:]


def measures(shown, row_of, contenders):
    """A line for each contender: its three measures."""
    for name in contenders:
        row = row_of[name]
        values = [
            spread(row),
            f"{mean_domain_ms(row):,.0f} ms",
            f"{cpu_time_s(row):,.2f} s",
        ]
        if name != "stock" and "stock" in row_of:
            values = [
                f"{value}, {ratio(shown, row_of, name, 'stock', measure)} x"
                for value, measure in zip(values, MEASURES.values(), strict=True)
            ]
        one_run = "; one run" if shown.is_one_run(row_of, name) else ""
        yield f"{shown.names[name]}{one_run}", *values


def latencies(shown, row_of, contenders):
    """A table, where the workload has requests."""
    found = {name: latency for name in contenders if (latency := row_of[name].latency_us())}
    if not found:
        return
    headings = ["", *max(found.values(), key=len)]
    lines = (
        [shown.names[name], *(f"{value:,.0f}" for value in latency.values())]
        for name, latency in found.items()
    )
    yield from ("Latency of requests, in microseconds:", "", *table(headings, lines), "")


def largest(shown, domains, row_of):
    """Of the largest number of domains: three measures, latencies, counters."""
    counted = [name for name in shown.names if name in row_of and name not in shown.bounds]
    yield from (f"Three measures of {domains} domains:", "")
    yield from (*table(["", *MEASURES], measures(shown, row_of, counted)), "")
    yield from latencies(shown, row_of, counted)
    yield from (f"Counters of {domains} domains:", "")
    values = (
        [shown.names[c], *(show(row_of[c].median(figure)) for _, figure, show in shown.figures)]
        for c in counted
    )
    yield from (*table(["", *(heading for heading, *_ in shown.figures)], values), "")


def times_table(shown, points):
    """A column for each number of domains and ratio."""
    contenders = [name for name in shown.names if any(name in row_of for *_, row_of in points)]
    headings, columns = [""], []
    for name, domains, row_of in points:
        is_all = is_all_one_run(shown, row_of)
        headings.append(point(shown.ratios[name], domains) + ("; one run" if is_all else ""))
        columns.append({c: (entry if is_all else marked)(shown, row_of, c) for c in contenders})
    lines = ([shown.names[c], *(column[c] for column in columns)] for c in contenders)
    yield from (*table(headings, lines), "")


def tables(shown):
    """Of each workload: times, the curve over ratios, three measures, and counters."""
    yield from (
        "Time until all work is done: the median, with the range over all runs in parentheses;",
        "`x`: speed relative to stock without NUMA balancing; last, speed relative to the bound. A",
        f"ratio has two decimals where {FIRM_RUNS} runs are behind each side of it (three seeds in",
        "each of two builds of the guest), else one. A bound repeats almost exactly, so one run of",
        "it counts as exact. Three measures: `x` is stock's median over the contender's. Ratio in",
        "a heading: latency of the farthest node's lines over that of local ones. Two contenders",
        "that bind alike share a trial.",
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
        yield from (f"**{workload}** on `{machine}`:", "", commits(points), "")
        yield from times_table(shown, points)
        for domains in sorted({domains for _, domains, _ in points}):
            if file := shown.curves.get((workload, machine, domains)):
                alternative = f"{workload} with {domains} domains by the ratio of latencies: "
                alternative += "throughput of each contender against stock"
                yield from (f"![{alternative}]({Path(file).as_posix()})", "")
        own = [(domains, row_of) for name, domains, row_of in points if name == machine]
        if own:
            yield from largest(shown, *max(own, key=lambda each: each[0]))


def text_of(shown, made, missing):
    """The text. `made`: dates and sources of the results. `missing`: lines on points without
    results."""
    if not shown.rows:
        raise LabError("none of these comparisons has been made yet")
    parts = [*legend(made), *scheduler_line(shown), *summary(shown), *tables(shown)]
    if missing:
        parts += [
            "Of the set, these have no result yet:",
            "",
            *(f"- {point}" for point in missing),
            "",
        ]
    return "\n".join(parts)
