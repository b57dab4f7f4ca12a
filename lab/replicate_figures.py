"""Figures of lab/replicate: throughput of each arm, and where instructions came from."""

import statistics

from tables import counted, local_share, waiting_share

# Rounds of a domain, as lab/workloads/src/workload.rs has them: sdet has two users of 12.
ROUNDS = {"text": 60, "sdet": 24}


def by_node(key):
    """Lines by the node of their memory, between the marks."""

    def figure(result):
        nodes = range(len(result["marks"][0]["vcpus"][0][key]))
        return [counted(result, lambda vcpu, node=node: vcpu[key][node]) for node in nodes]

    return figure


def local_text_share(result):
    """Of the programs' instruction lines, those from the CPU's own node."""
    key = "user_code_fetched"
    own = counted(result, lambda vcpu: vcpu[key][vcpu["node"]])
    return own / max(1, sum(by_node(key)(result)))


def gains(by_arm):
    """Throughput with copies over that without, less 1, of each pair that has both results."""
    pairs = zip(by_arm["originals"], by_arm["copies"], strict=True)
    return [one["total_ms"] / other["total_ms"] - 1 for one, other in pairs if one and other]


def thousands(lines):
    return " / ".join(f"{count / 1000:.1f}" for count in lines)


def table(by_arm, rounds):
    """A row for each arm: medians of its results, and lines of its first one."""
    headings = ["arm", "rounds a second", "least .. most", "local share", "waiting for memory"]
    headings += ["programs' instruction lines by node (thousands)", "of these local"]
    headings += ["kernel's by node (thousands)", "remote cache hits (thousands)"]
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for arm, results in by_arm.items():
        results = [result for result in results if result]
        if not results:
            lines.append(f"| {arm} | no result{' |' * (len(headings) - 1)}")
            continue
        rates = [rounds / result["total_ms"] * 1000 for result in results]
        first = results[0]
        programs, all_code = by_node("user_code_fetched")(first), by_node("code_fetched")(first)
        kernels = [total - own for total, own in zip(all_code, programs, strict=True)]
        hits = counted(first, lambda vcpu: vcpu["remote_cache_hits"])
        columns = [arm, f"{statistics.median(rates):.0f}", f"{min(rates):.0f} .. {max(rates):.0f}"]
        columns += [f"{statistics.median(map(local_share, results)):.1%}"]
        columns += [f"{statistics.median(map(waiting_share, results)):.1%}"]
        columns += [thousands(programs), f"{local_text_share(first):.1%}"]
        columns += [thousands(kernels), f"{hits / 1000:.1f}"]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join([*lines, ""])
