"""The comparisons that docs/performance.md shows, and the text that is made of them."""

from dataclasses import dataclass

from common import LabError

ON_LINUX = ("stock", "balancing", "numad", "pin-naive", "pin-oracle", "nearside", "local", "remote")
EVERYBODY = (*ON_LINUX, "xen")
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
    Part("dbench", (16,), ON_LINUX),
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
        f"Written by this command ({made}).",
        "How long until all of the work is done: a median, and in parentheses the least and the most of those that ran with three",
        "seeds; `x`: so many times as fast as stock without NUMA balancing; last, the part of the bound's speed. Ratio: so many times as",
        "long as a local one a line from the farthest node takes. Where two contenders bind alike they are one run.",
        "",
    )


def text_of(rows, name_of, ratios, names, bounds, figures, made, missing):
    """`rows`: by machine, workload and number of domains, by contender. `ratios`: by name of machine. `figures`: heading, figure of a
    result, how it is shown. `made`: when and of what. `missing`: what of each point."""
    tables = {}
    for machine, workload, domains in rows:
        name = name_of(machine)
        tables.setdefault((workload, name.partition(".ratio-")[0]), []).append((name, domains, rows[machine, workload, domains]))
    parts = list(legend(made))
    for (workload, machine), points in tables.items():
        points.sort(key=lambda each: (each[1], ratios[each[0]]))
        shown = [contender for contender in names if any(contender in row_of for *_, row_of in points)]
        parts += [f"**{workload}** on `{machine}`:", ""]
        headings = ["", *(point(ratios[name], domains) for name, domains, _ in points)]
        parts += [*table(headings, ([names[c], *(cell(row_of, c) for *_, row_of in points)] for c in shown)), ""]
        own = [(domains, row_of) for name, domains, row_of in points if name == machine]
        if not own:
            continue
        domains, row_of = max(own, key=lambda each: each[0])
        counted = [contender for contender in shown if contender in row_of and contender not in bounds]
        parts += [f"What the counters say of {domains} domains:", ""]
        values = ([names[c], *(show(row_of[c].median(figure)) for _, figure, show in figures)] for c in counted)
        parts += [*table(["", *(heading for heading, *_ in figures)], values), ""]
    if not tables:
        raise LabError("none of these comparisons has been made yet")
    if missing:
        parts += ["Of the set, these were not measured yet:", "", *(f"- {point}" for point in missing), ""]
    return "\n".join(parts)


def split(path):
    """What stands before and after the two marks."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise LabError(f"{path} has no lines {BEGIN!r} and {END!r} to write between")
    return before, after


def write_into(path, text):
    """Between the two marks, whatever is there."""
    before, after = split(path)
    path.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")
