"""The comparisons that docs/performance.md shows, and the text that is made of them."""

from dataclasses import dataclass

from common import LabError

EVERYBODY = ("stock", "balancing", "numad", "pin-naive", "pin-oracle", "nearside", "local", "remote")
STOCK_AND_US = ("stock", "balancing", "nearside")


@dataclass(frozen=True)
class Part:
    """Cells: each of these contenders with each number of domains, at each ratio (else on the machine as it is), with each seed."""

    workload: str
    domains: tuple
    contenders: tuple = EVERYBODY
    machine: str = "x460-small"
    ratios: tuple = ()
    seeds: int = 1


# At most 150 guests: pins that are the same share one.
SET = (
    Part("warehouse", (16,), seeds=3),
    Part("warehouse", (16,), ratios=(1.5, 2.0)),
    Part("warehouse", (4, 8, 12)),
    Part("skewed", (16,), seeds=3),
    Part("sdet", (16,)),
    Part("sdet", (4, 8, 12), STOCK_AND_US),
    Part("dbench", (16,)),
    Part("dbench", (4, 8, 12), STOCK_AND_US),
    Part("stream", (16,), STOCK_AND_US),
    Part("lock", (16,), STOCK_AND_US),
    Part("hackbench", (16,), STOCK_AND_US),
    Part("text", (16,), STOCK_AND_US),
    Part("warehouse", (8,), ("stock", "nearside"), "one-node"),
    Part("sdet", (8,), ("stock", "nearside"), "one-node"),
)

BEGIN = "<!-- Written by lab/compare --required: begin -->"
END = "<!-- Written by lab/compare --required: end -->"


def spread(row):
    """The median, and from where to where where it was run more than once."""
    least, most = min(row.times_ms), max(row.times_ms)
    return f"{row.median_ms():,.0f} ms" + (f" ({least:,.0f} .. {most:,.0f})" if len(row.times_ms) > 1 else "")


def cell(row_of, contender):
    """A time, so many times as fast as stock it is, and which part of the bound's speed."""
    if contender not in row_of:
        return ""
    row = row_of[contender]
    text = spread(row)
    if "stock" in row_of and contender != "stock":
        text += f", {row_of['stock'].median_ms() / row.median_ms():.2f} x"
    if "local" in row_of and contender != "local":
        text += f", {row_of['local'].median_ms() / row.median_ms():.2f}"
    return text


def point(name, domains):
    """The heading of a column. At a ratio a machine bears that in its name."""
    ratio = name.partition(".ratio-")[2]
    return f"{domains} domains" + (f", ratio {ratio}" if ratio else "")


def table(headings, lines):
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    for line in lines:
        yield f"| {' | '.join(line)} |"


def text_of(rows, name_of, names, bounds, figures):
    """`rows`: by machine, workload and number of domains, by contender. `figures`: heading, figure of a result, how it is shown."""
    tables = {}
    for machine, workload, domains in rows:
        name = name_of(machine)
        tables.setdefault((workload, name.partition(".ratio-")[0]), []).append((name, domains, rows[machine, workload, domains]))
    parts = []
    for (workload, machine), points in tables.items():
        points.sort(key=lambda each: each[:2])
        shown = [contender for contender in names if any(contender in row_of for *_, row_of in points)]
        parts += [f"**{workload}** on `{machine}`:", ""]
        headings = ["", *(point(name, domains) for name, domains, _ in points)]
        parts += [*table(headings, ([names[c], *(cell(row_of, c) for *_, row_of in points)] for c in shown)), ""]
        own = [(domains, row_of) for name, domains, row_of in points if name == machine]
        if not own:
            continue
        domains, row_of = max(own, key=lambda each: each[0])
        counted = [contender for contender in shown if contender in row_of and contender not in bounds]
        parts += [f"What the counters say of {domains} domains:", ""]
        values = ([names[c], *(show(row_of[c].median(figure)) for _, figure, show in figures)] for c in counted)
        parts += [*table(["", *(heading for heading, *_ in figures)], values), ""]
    if not parts:
        raise LabError("none of these comparisons has been made yet")
    return "\n".join(parts)


def write_into(path, text):
    """Between the two marks, whatever is there."""
    old = path.read_text()
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise LabError(f"{path} has no lines {BEGIN!r} and {END!r} to write between")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")
