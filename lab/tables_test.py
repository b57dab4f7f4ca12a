"""Tests of the results of a comparison: figures, tables, plots and commands. Run by `make unit`."""

import tempfile
import unittest
from pathlib import Path

import tables
from trials import Trial
from fakes import result
from tables import rows_of


class Counters(unittest.TestCase):
    def test_a_cpu_that_was_halted_before_is_not_idle_twice(self):
        seen = result(100, busy_ms=(80, 40))
        self.assertAlmostEqual(tables.busy_ns(seen), 120e6)
        self.assertAlmostEqual(tables.halted_share(seen), 0.4)
        self.assertAlmostEqual(tables.waiting_share(seen), 0.5)

    def test_cpus_that_were_busy_a_little_longer_than_the_machine_were_not_halted(self):
        self.assertEqual(str(tables.halted_share(result(100, busy_ms=(100, 100.01)))), "0.0")

    def test_local_lines_come_from_the_cpus_own_node(self):
        self.assertAlmostEqual(tables.local_share(result(100, (1, 1), ((30, 10), (5, 55)))), 0.85)

    def test_a_bound_is_cpu_time_shared_out(self):
        trial = Trial("w", "m", 2, "local", 1)
        self.assertAlmostEqual(tables.total_ms(trial, result(100, busy_ms=(80, 40))), 60)


class Table(unittest.TestCase):
    def test_ratios_and_plot(self):
        trials = [
            Trial("w", "m", 2, contender, seed)
            for contender in ("stock", "local")
            for seed in (1, 2, 3)
        ]
        times = (100, 150, 200, 0, 0, 0)
        results = {
            trial: result(time, (150, 150), ((90, 10), (0, 0)))
            for trial, time in zip(trials, times)
        }
        rows = rows_of(results)
        lines = tables.table(results).splitlines()
        stock = next(line for line in lines if line.startswith("| stock"))
        self.assertTrue(stock.split(" | ")[1:5] == ["150", "100 .. 200", "1.00", "1.00"], stock)
        self.assertIn("90.0 %", stock)
        self.assertEqual(
            {line.count("|") for line in lines if line.startswith("|")},
            {len(tables.HEADINGS) + len(tables.FIGURES) + 1},
        )
        with tempfile.TemporaryDirectory() as folder:
            tables.write_plots(Path(folder), rows)
            svg = (Path(folder) / "w.m.svg").read_text()
        self.assertTrue(svg.startswith("<svg") and "stroke-dasharray" in svg)

    def test_trials_without_a_result_are_named(self):
        wanted = [
            Trial("w", "m", domains, c, seed)
            for domains in (2, 4)
            for c in ("stock", "nearside")
            for seed in (1, 2)
        ]
        results = {
            trial: result(100, (1, 1)) if trial.domains == 2 and trial.seed == 1 else None
            for trial in wanted
        }
        results[wanted[0]] = None
        text = tables.table(results)
        self.assertIn("Without a result: stock, nearside (seed 2).", text)
        self.assertIn("### w, 4 domains on m\n\nWithout a result: stock, nearside.", text)

    def test_missing_runs_are_named_by_seed_and_build_where_there_are_builds(self):
        results = {
            Trial("w", "m", 2, "stock", seed, build): None if build > seed else result(100, (1, 1))
            for seed in (1, 2)
            for build in (1, 2)
        }
        self.assertEqual(tables.lacking(results), {("m", "w", 2): "stock (seed 1 of build 2)"})
        self.assertEqual(len(rows_of(results)["m", "w", 2]["stock"].times_ms), 3)

    def test_cpu_time_stands_beside_the_mean(self):
        busy_ms = {"stock": (900, 1100), "nearside": (300, 700)}
        results = {Trial("w", "m", 2, c, 1): result(1000, busy) for c, busy in busy_ms.items()}
        lines = tables.table(results).splitlines()
        nearside = next(line for line in lines if line.startswith("| nearside")).split(" | ")
        at = tables.HEADINGS.index("CPU time (s)")
        self.assertEqual(nearside[at - 2 : at + 2], ["750", "1.00", "1.00", "2.00"])

    def test_latencies_are_shown_where_there_are_requests(self):
        def run(contender, seed, p99):
            latency = p99 and {"p50": 10, "p99": p99, "p99.9": 900}
            made = {**result(100, (1, 1)), "latency_us": latency}
            return Trial("server", "m", 2, contender, seed), made

        results = dict(
            [run("stock", seed, p99) for seed, p99 in enumerate((200, 300, 220))]
            + [run("numad", 1, None)]
        )
        row_of = rows_of(results)["m", "server", 2]
        self.assertEqual(row_of["stock"].latency_us(), {"p50": 10, "p99": 220, "p99.9": 900})
        self.assertIsNone(row_of["numad"].latency_us())
        lines = [line for line in tables.table(results).splitlines() if line.startswith("|")]
        self.assertTrue(lines[0].endswith("| latency, p99 (us) | latency, p99.9 (us) |"), lines[0])
        self.assertTrue(lines[2].endswith(" | 10 | 220 | 900 |"), lines[2])
        self.assertEqual(len({line.count("|") for line in lines}), 1)

    def test_several_ratios_are_a_curve(self):
        ratios = {"m": 2.6, "m.ratio-1.5": 1.4999, "m.ratio-2.0": 2.0}
        trials = {
            Trial("w", f"{name}.toml", 16, c, 1): 100
            for name in ratios
            for c in ("stock", "nearside", "local")
        }
        trials |= {
            Trial("w", "m.toml", 4, "stock", 1): 100,
            Trial("w", "m.ratio-2.0.toml", 8, "nearside", 1): 100,
        }
        rows = rows_of({trial: result(time, (50, 50)) for trial, time in trials.items()})
        with tempfile.TemporaryDirectory() as folder:
            files = tables.write_ratio_plots(Path(folder), rows, ratios)
            self.assertEqual(files, {("w", "m", 16): Path(folder) / "w.m.16-domains.ratios.svg"})
            svg = files["w", "m", 16].read_text()
        for text in (">1.5<", ">2.0<", ">2.6<", ">nearside<", ">local<"):
            self.assertIn(text, svg)
        self.assertEqual(svg.count("<polyline"), 3)

    def test_provenance_covers_the_shown_results(self):
        when = ((5, "b"), (3, "a"), (4, "b"))
        made = [
            {**result(1), "ended": f"2026-11-2{day}T01:00:00+00:00", "commit": commit}
            for day, commit in when
        ]
        results = dict(enumerate([*made, None]))
        told = "2026-11-23 to 2026-11-25, commits a, b, Linux 7.1, QEMU 10.0, "
        told += "control intervals 20 times shorter than by default"
        self.assertEqual(tables.provenance(results), told)
        self.assertIn("2026-11-25, commit b,", tables.provenance({1: made[0]}))
        self.assertEqual(tables.provenance({1: None}), "no results")

    def test_commands_of_earlier_tables_stay(self):
        trials = [Trial("w", "m", 2, contender, 1) for contender in ("stock", "nearside")]
        with tempfile.TemporaryDirectory() as folder:
            tables.write_commands(Path(folder), {trials[0]: {"command": "old"}, trials[1]: None})
            tables.write_commands(Path(folder), {trials[1]: {"command": "other"}})
            tables.write_commands(Path(folder), {trials[0]: {"command": "new"}})
            lines = (Path(folder) / "commands").read_text().splitlines()
        self.assertEqual(lines[1:], [f"# {trials[0]}", "new", f"# {trials[1]}", "other"])


if __name__ == "__main__":
    unittest.main()
