"""Tests of the comparisons that docs/performance/comparison.md shows, and of their judgement.
Run by `make unit`."""

import unittest
from pathlib import Path

import machines
import required
from trials import Trial
from common import LabError
from contenders import BOUNDS, CONTENDERS
from fakes import result
from tables import FIGURES, rows_of


class Text(unittest.TestCase):
    def shown(self, rows, ratios, curves=None):
        return required.Shown(
            rows, machines.name_of, ratios, CONTENDERS, BOUNDS, FIGURES, curves or {}
        )

    def requirements(self, times):
        """The judgement of each requirement, if these were measured."""
        shown = self.measured(times)
        return {what: rest for what, *rest in required.requirements(shown)}, list(
            required.published(shown)
        )

    def measured(self, times, latencies=None):
        trials = {
            Trial(*key, seed): ms for key, seeds in times.items() for seed, ms in enumerate(seeds)
        }
        results = {
            trial: {**result(ms, (ms, ms)), "latency_us": (latencies or {}).get(trial.contender)}
            for trial, ms in trials.items()
        }
        return self.shown(rows_of(results), {"x460-small": 2.6, "one-node": 1})

    def warehouse(self, **times):
        return {
            ("warehouse", "x460-small", 16, name.replace("_", "-")): ms
            for name, ms in times.items()
        }

    def test_requirements_are_judged_by_the_medians(self):
        times = self.warehouse(
            stock=(230, 240, 250) * 2, nearside=(150, 151, 155) * 2, local=(150,)
        )
        times |= {
            ("skewed", "x460-small", 16, "nearside"): (100,) * 6,
            ("skewed", "x460-small", 16, "pin-naive"): (119,) * 6,
        }
        times |= {
            ("dbench", "x460-small", 16, "stock"): (160,),
            ("dbench", "x460-small", 16, "nearside"): (100,),
        }
        times |= {("dbench", "x460-small", 4, "stock"): (1,)}
        said, published = self.requirements(times)
        at = "16 domains, ratio 2.6 on `x460-small`"
        self.assertEqual(
            said[f"`warehouse`, {at}: 1.4 times stock without NUMA balancing"], ["1.589", "reached"]
        )
        self.assertEqual(said[f"`warehouse`, {at}: 0.985 of the bound"], ["0.993", "reached"])
        self.assertEqual(
            said[f"`skewed`, {at}: 1.2 times the naive pins"], ["1.190", "**not reached**"]
        )
        self.assertEqual(
            said[f"`dbench`, {at}: at least as fast as stock without NUMA balancing"],
            ["1.6; one run", "reached"],
        )
        self.assertEqual(
            said["`sdet`, 8 domains on `one-node`: 0.995 times stock without NUMA balancing"],
            ["", "not measured"],
        )
        self.assertEqual(
            said["`dbench`, 16 domains, beside the published +50 %: the gain over stock"],
            ["+60.0 %", "reached"],
        )
        self.assertIn(("`dbench`, published", "+0.0 %", "+7.8 %", "+24.5 %", "+50.0 %"), published)
        self.assertIn(("`dbench`, Nearside", "", "", "", "+60.0 %"), published)

    def test_ahead_means_faster_than_the_best_of_every_other_contender(self):
        others = {
            name.replace("-", "_"): (300, 310)
            for name in CONTENDERS
            if name not in (*BOUNDS, "nearside")
        }
        ahead = ".. ahead of every contender outside the spread"
        for times, verdict in (
            ({**others, "numad": (200, 220), "nearside": (150, 199)}, "reached"),
            ({**others, "numad": (200, 220), "nearside": (150, 200)}, "**not reached**"),
            ({"stock": (200, 220), "nearside": (150, 199)}, "not measured"),
            ({"nearside": (150, 199)}, "not measured"),
        ):
            said, _ = self.requirements(self.warehouse(**times))
            self.assertEqual(said[ahead][1], verdict)
        said, _ = self.requirements(
            self.warehouse(
                **{
                    **others,
                    "pin_naive": (100, 120),
                    "pin_oracle": (100, 120),
                    "nearside": (150, 152),
                }
            )
        )
        self.assertEqual(
            said[ahead][0],
            "151 ms (150 .. 152); the nearest: `pin-naive` and `pin-oracle`, 110 ms (100 .. 120)",
        )

    def test_ahead_of_the_best_pins_is_judged_by_the_medians_and_says_where_the_spread_is(self):
        what = "`sdet`, 16 domains, ratio 2.6 on `x460-small`: ahead of the best pins"
        for nearside, expected in (
            ((90, 91, 92), ["1.1, outside the spread", "reached"]),
            ((90, 91, 97), ["1.1, within the spread", "reached"]),
            ((100, 100, 100), ["1.0, within the spread", "**not reached**"]),
        ):
            times = {"pin-naive": (110, 120, 130), "pin-oracle": (97, 100, 101)}
            said, _ = self.requirements(
                {
                    ("sdet", "x460-small", 16, name): ms
                    for name, ms in {**times, "nearside": nearside}.items()
                }
            )
            self.assertEqual(said[what], expected)

    def test_requests_wait_no_longer_than_under_stock(self):
        at = "16 domains, ratio 2.6 on `x460-small`"
        what = f"`server`, {at}: p99 of the latency at most stock's"
        times = {("server", "x460-small", 16, name): (100,) for name in ("stock", "nearside")}
        for p99, expected in ((1500, "reached"), (1501, "**not reached**")):
            latencies = {
                "stock": {"p50": 10, "p99": 1500, "p99.9": 2000},
                "nearside": {"p50": 20, "p99": p99, "p99.9": 3000},
            }
            shown = self.measured(times, latencies)
            said = {what: rest for what, *rest in required.requirements(shown)}
            self.assertEqual(said[what], [f"{p99:,} us; stock: 1,500 us", expected])
            lines = required.text_of(shown, "today", []).splitlines()
            self.assertIn("Latency of requests, in microseconds:", lines)
            self.assertIn("|  | p50 | p99 | p99.9 |", lines)
            self.assertIn(f"| {CONTENDERS['nearside']} | 20 | {p99:,} | 3,000 |", lines)
        said, _ = self.requirements(times)
        self.assertEqual(said[what], ["", "not measured"])

    def test_a_ratio_of_six_runs_has_two_decimals_and_one_of_fewer_has_one(self):
        times = self.warehouse(
            stock=(300,) * 6, balancing=(200,) * 5, numad=(290,), nearside=(210,) * 6, local=(180,)
        )
        lines = required.text_of(self.measured(times), "today", []).splitlines()
        self.assertIn("|  | 16 domains, ratio 2.6 |", lines)
        for name, cell in {
            "stock": "300 ms (300 .. 300), 0.60",
            "balancing": "200 ms (200 .. 200), 1.5 x, 0.9",
            "numad": "290 ms, 1.0 x, 0.6; one run",
            "nearside": "210 ms (210 .. 210), 1.43 x, 0.86",
            "local": "180 ms, 1.67 x",
        }.items():
            self.assertIn(f"| {CONTENDERS[name]} | {cell} |", lines)

    def test_three_measures_stand_side_by_side_and_the_headline_is_the_least(self):
        rows = {}
        for name, (total, mean, busy) in {
            "stock": (300, 200, 250),
            "balancing": (220, 200, 250),
            "nearside": (200, 160, 200),
        }.items():
            made = {**result(total, (busy, busy)), "domains": [{"time_ms": mean}]}
            runs = 1 if name == "balancing" else 6
            rows |= {Trial("warehouse", "x460-small", 16, name, s): made for s in range(runs)}
        shown = self.shown(rows_of(rows), {"x460-small": 2.6})
        lines = required.text_of(shown, "today", []).splitlines()
        measured = "200 ms (200 .. 200), 1.50 x | 160 ms, 1.25 x | 0.40 s, 1.25 x"
        self.assertIn("|  | last domain done | mean domain | CPU time for the same work |", lines)
        self.assertIn(f"| {CONTENDERS['stock']} | 300 ms (300 .. 300) | 200 ms | 0.50 s |", lines)
        self.assertIn(f"| {CONTENDERS['nearside']} | {measured} |", lines)
        measured = "220 ms, 1.4 x | 200 ms, 1.0 x | 0.50 s, 1.0 x"
        self.assertIn(f"| {CONTENDERS['balancing']}; one run | {measured} |", lines)
        self.assertIn(f"| {CONTENDERS['stock']} | 1.50 | 1.25 | 1.25 | **1.25** |", lines)
        self.assertIn(f"| {CONTENDERS['balancing']} | 1.1 | 1.2 | 1.2 | **1.1**; one run |", lines)

    def test_a_table_names_the_commits_and_the_scheduler_of_its_results(self):
        made = {
            "stock": {"commit": "b", "ended": "2026-11-24T01:00:00+00:00"},
            "balancing": {"commit": "a"},
            "nearside": {"commit": "c", "scheduler_sources": "f00d"},
        }
        rows = rows_of(
            {
                Trial("w", "m", 2, name, 1): {**result(100, (1, 1)), **more}
                for name, more in made.items()
            }
        )
        lines = required.text_of(self.shown(rows, {"m": 1}), "today", []).splitlines()
        at = lines.index("**w** on `m`:")
        told = "Nearside at c; the others at a, b (2026-11-23 to 2026-11-24)."
        self.assertEqual(lines[at + 1 : at + 3], ["", told])
        self.assertIn("Scheduler of these results: `f00d`.", lines)

    def test_a_column_for_each_ratio_and_number_of_domains_and_a_row_for_each_contender(self):
        times = {"stock": (300, 301, 310) * 2, "nearside": (200,) * 6}
        trials = {
            Trial("w", "m", 16, c, seed): time for c in times for seed, time in enumerate(times[c])
        }
        trials |= {
            Trial("w", "m.ratio-2.0.toml", 16, "stock", 1): 150,
            Trial("w", "m", 4, "nearside", 1): 90,
        }
        rows = rows_of({trial: result(time, (150, 150)) for trial, time in trials.items()})
        ratios = {"m": 2.6, "m.ratio-2.0": 2.0}
        more = ("today", ["w, 8 domains on m: stock"])
        lines = required.text_of(
            self.shown(rows, ratios, {("w", "m", 16): Path("images/w.svg")}), *more
        ).splitlines()
        self.assertIn(
            "|  | 4 domains, ratio 2.6; one run | 16 domains, ratio 2.0; one run "
            "| 16 domains, ratio 2.6 |",
            lines,
        )
        self.assertIn(f"| {CONTENDERS['stock']} |  | 150 ms | 301 ms (300 .. 310) |", lines)
        self.assertIn(
            f"| {CONTENDERS['nearside']} | 90 ms |  | 200 ms (200 .. 200), 1.50 x |", lines
        )
        self.assertIn("- w, 8 domains on m: stock", lines)
        self.assertTrue(
            any(line.startswith("![") and line.endswith("(images/w.svg)") for line in lines)
        )
        with self.assertRaises(LabError):
            required.text_of(self.shown({}, ratios), *more)


if __name__ == "__main__":
    unittest.main()
