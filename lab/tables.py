"""Results of a comparison: figures, tables, plots and commands."""

import statistics
from dataclasses import dataclass

import required
from common import replace
from contenders import BOUNDS, CONTENDERS, FASTER
from machines import name_of
from plot import plot


# -- figures --


def counted(result, take):
    """The sum of a counter over all CPUs, between the marks. `take` gives it of one CPU."""
    begin, end = result["marks"]
    return sum(
        take(after) - take(before)
        for before, after in zip(begin["vcpus"], end["vcpus"], strict=True)
    )


def all_lines(key):
    return lambda result: counted(result, lambda vcpu: sum(vcpu[key]))


def remote_lines(key):
    return lambda result: counted(result, lambda vcpu: sum(vcpu[key]) - vcpu[key][vcpu["node"]])


def busy_ns(result):
    """A CPU that is halted has idled until its own clock, which stands still until it goes on."""
    return counted(result, lambda vcpu: vcpu["now_ns"] - vcpu["idle_ns"])


def waiting_share(result):
    return counted(result, lambda vcpu: vcpu["stall_ns"]) / busy_ns(result)


def busy_per_cpu_ns(result):
    return busy_ns(result) / len(result["marks"][0]["vcpus"])


def halted_share(result):
    begin, end = result["marks"]
    # A CPU's clock may be a little ahead of the machine's at a mark.
    return max(0.0, 1 - busy_per_cpu_ns(result) / (end["machine_ns"] - begin["machine_ns"]))


def local_share(result):
    return 1 - remote_lines("fetched")(result) / max(all_lines("fetched")(result), 1)


def cpu_time_s(result):
    """Of all CPUs, for the same work."""
    return busy_ns(result) / 1e9


def mean_domain_ms(result):
    return statistics.mean(domain["time_ms"] for domain in result["domains"])


def total_ms(trial, result):
    """From the common beginning until the last domain is done. For a bound: the CPU time that took,
    shared out evenly."""
    return busy_per_cpu_ns(result) / 1e6 if trial.contender in BOUNDS else result["total_ms"]


# Percentiles of the latency of requests, in a result of a workload that has requests.
PERCENTILES = ("p50", "p99", "p99.9")


@dataclass
class Row:
    """All runs of a contender: each seed of each build."""

    times_ms: list
    results: list

    def median_ms(self):
        return statistics.median(self.times_ms)

    def median(self, figure):
        return statistics.median(map(figure, self.results))

    def median_mean_domain_ms(self):
        return self.median(mean_domain_ms)

    def median_cpu_time_s(self):
        return self.median(cpu_time_s)

    def latency_us(self):
        """Medians by percentile; None where the workload has no requests."""
        known = [found for result in self.results if (found := result.get("latency_us"))]
        if not known:
            return None
        return {
            percentile: statistics.median(latency[percentile] for latency in known)
            for percentile in PERCENTILES
        }


def rows_of(results):
    rows = {}
    for trial, result in results.items():
        if result:
            row = rows.setdefault((trial.machine, trial.workload, trial.domains), {}).setdefault(
                trial.contender, Row([], [])
            )
            row.times_ms.append(total_ms(trial, result))
            row.results.append(result)
    return rows


# -- tables --


# Figures of each contender in the table beside its time: heading, figure, format.
FIGURES = (
    ("local share", local_share, lambda share: f"{100 * share:.1f} %"),
    ("remote lines (M)", remote_lines("fetched"), lambda count: f"{count / 1e6:.2f}"),
    ("of these text (M)", remote_lines("code_fetched"), lambda count: f"{count / 1e6:.2f}"),
    (
        "cache to cache between nodes (M)",
        remote_lines("cache_to_cache"),
        lambda count: f"{count / 1e6:.2f}",
    ),
    ("waiting for memory", waiting_share, lambda share: f"{100 * share:.0f} %"),
    ("CPUs halted", halted_share, lambda share: f"{100 * share:.1f} %"),
)
HEADINGS = (
    "contender",
    "all done (ms)",
    "least .. most",
    "against stock",
    "of the bound",
    "a domain, mean (ms)",
    "against stock",
    "CPU time (s)",
    "against stock",
)


def against(row_of, contender, median):
    """A column: so many times the row's figure is that contender's."""
    return lambda row: (
        f"{median(row_of[contender]) / median(row):.2f}" if contender in row_of else ""
    )


def table_lines(row_of):
    total, mean, cpu = Row.median_ms, Row.median_mean_domain_ms, Row.median_cpu_time_s
    against_stock, of_bound, mean_against_stock, cpu_against_stock = (
        against(row_of, name, median)
        for name, median in (("stock", total), ("local", total), ("stock", mean), ("stock", cpu))
    )
    headings = [*HEADINGS, *(heading for heading, _, _ in FIGURES)]
    if any(row.latency_us() for row in row_of.values()):
        headings += [f"latency, {percentile} (us)" for percentile in PERCENTILES]
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    for contender in (name for name in CONTENDERS if name in row_of):
        row = row_of[contender]
        columns = [
            f"{contender}: {CONTENDERS[contender]}",
            f"{total(row):.0f}",
            f"{min(row.times_ms):.0f} .. {max(row.times_ms):.0f}",
        ]
        columns += [against_stock(row), of_bound(row)]
        if contender not in BOUNDS:
            columns += [
                f"{mean(row):.0f}",
                mean_against_stock(row),
                f"{cpu(row):.2f}",
                cpu_against_stock(row),
                *(show(row.median(figure)) for _, figure, show in FIGURES),
                *(f"{latency:.0f}" for latency in (row.latency_us() or {}).values()),
            ]
        yield f"| {' | '.join([*columns, *[''] * (len(headings) - len(columns))])} |"


def lacking(results):
    """Trials without a result, by point: contenders, with their runs where others have results."""
    wanted, missing = {}, {}
    for trial, result in results.items():
        point = trial.machine, trial.workload, trial.domains
        run = trial.seed, trial.build
        wanted.setdefault((point, trial.contender), []).append(run)
        if not result:
            missing.setdefault(point, {}).setdefault(trial.contender, []).append(run)

    def text(point, contender, runs):
        if runs == wanted[point, contender]:
            return contender
        if all(build == 1 for _, build in wanted[point, contender]):
            return f"{contender} (seed {', '.join(str(seed) for seed, _ in runs)})"
        named = ", ".join(f"seed {seed} of build {build}" for seed, build in runs)
        return f"{contender} ({named})"

    return {
        point: ", ".join(text(point, *each) for each in runs_of.items())
        for point, runs_of in missing.items()
    }


def point_name(point):
    machine, workload, domains = point
    return f"{workload}, {domains} domains on {name_of(machine)}"


def table(results):
    rows, missing, parts = rows_of(results), lacking(results), []
    for point in sorted({**rows, **missing}):
        parts += [f"### {point_name(point)}", ""]
        parts += [*table_lines(rows[point]), ""] if point in rows else []
        parts += [f"Without a result: {missing[point]}.", ""] if point in missing else []
    return "\n".join(parts)


def provenance(results):
    """Dates of these results, and the versions that made them."""
    found = sorted(filter(None, results.values()), key=lambda result: result["ended"])
    if not found:
        return "no results"
    days = list(dict.fromkeys(result["ended"][:10] for result in found))
    of = {
        key: list(dict.fromkeys(result[key] for result in found))
        for key in ("commit", "kernel", "qemu")
    }
    commits = f"commit{'s' if of['commit'][1:] else ''} {', '.join(of['commit'])}"
    when = f"{days[0]} to {days[-1]}" if days[1:] else days[0]
    made = f"{when}, {commits}, Linux {', '.join(of['kernel'])}, QEMU {', '.join(of['qemu'])}"
    return f"{made}, control intervals {FASTER} times shorter than by default"


def write_commands(folder, results):
    """Each guest's, as it can be entered again, in the order of the trials. Those of earlier
    comparisons stay, as their tables do."""
    file, head = (
        folder / "commands",
        "# From the repository's top. For the plugin's counters, add --counters FILE before --.",
    )
    lines = file.read_text().splitlines()[1:] if file.exists() else []
    commands = dict(zip(lines[::2], lines[1::2], strict=False))
    commands |= {f"# {trial}": result["command"] for trial, result in results.items() if result}
    replace(file, "\n".join([head, *(line for entry in commands.items() for line in entry)]) + "\n")


# -- plots --


def series_of(points):
    """Throughput against stock's with its spread, by contender and position. `points`: rows by
    contender, by position."""
    series = {}
    for position, row_of in sorted(points.items()):
        stock_ms = row_of["stock"].median_ms()
        for contender in (name for name in CONTENDERS if name in row_of):
            times_ms = row_of[contender].times_ms
            values = [
                stock_ms / statistics.median(times_ms),
                stock_ms / max(times_ms),
                stock_ms / min(times_ms),
            ]
            series.setdefault(contender, {})[position] = values
    return {name: series[name] for name in CONTENDERS if name in series}


def write_plots(folder, rows):
    for machine, workload in sorted({key[:2] for key in rows}):
        points = {
            domains: row_of
            for (m, w, domains), row_of in rows.items()
            if (m, w) == (machine, workload)
        }
        if all("stock" in row_of for row_of in points.values()):
            title = f"{workload} on {name_of(machine)}: "
            title += "throughput against the stock kernel without NUMA balancing"
            svg = plot(title, "domains", series_of(points), BOUNDS)
            (folder / f"{workload}.{name_of(machine)}.svg").write_text(svg)


def write_ratio_plots(folder, rows, ratios):
    """Where there are several ratios. Their files, by workload, machine and number of domains.
    `ratios`: by name of machine."""
    groups, files = {}, {}
    for (machine, workload, domains), row_of in rows.items():
        name = name_of(machine)
        if "stock" in row_of:
            groups.setdefault((workload, required.without_ratio(name), domains), {})[
                round(ratios[name], 2)
            ] = row_of
    for (workload, machine, domains), points in groups.items():
        if points.keys() - {min(points)}:
            title = f"{workload}, {domains} domains on {machine}: "
            title += "throughput against stock without NUMA balancing"
            x_title = "a line from the farthest node takes so many times as long as a local one"
            files[workload, machine, domains] = (
                folder / f"{workload}.{machine}.{domains}-domains.ratios.svg"
            )
            replace(
                files[workload, machine, domains], plot(title, x_title, series_of(points), BOUNDS)
            )
    return files
