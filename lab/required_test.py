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
        trials = {
            Trial(*key, seed): ms for key, seeds in times.items() for seed, ms in enumerate(seeds)
        }
        rows = rows_of({trial: result(ms, (ms, ms)) for trial, ms in trials.items()})
        shown = self.shown(rows, {"x460-small": 2.6, "one-node": 1})
        return {what: rest for what, *rest in required.requirements(shown)}, list(
            required.published(shown)
        )

    def warehouse(self, **times):
        return {
            ("warehouse", "x460-small", 16, name.replace("_", "-")): ms
            for name, ms in times.items()
        }

    def test_requirements_are_judged_by_the_medians(self):
        times = self.warehouse(
            stock=(230, 240, 250), nearside=(150, 151, 155), local=(149, 150, 151)
        )
        times |= {
            ("skewed", "x460-small", 16, "nearside"): (100, 100),
            ("skewed", "x460-small", 16, "pin-naive"): (119, 119),
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
        self.assertEqual(said[f"`warehouse`, {at}: 0.97 of the bound"], ["0.993", "reached"])
        self.assertEqual(
            said[f"`skewed`, {at}: 1.2 times the naive pins"], ["1.190", "**not reached**"]
        )
        self.assertEqual(
            said["`sdet`, 8 domains on `one-node`: 0.99 times stock without NUMA balancing"],
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

    def test_a_column_for_each_ratio_and_number_of_domains_and_a_row_for_each_contender(self):
        times = {"stock": (300, 301, 310), "nearside": (200, 200, 200)}
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
            "|  | 4 domains, ratio 2.6 | 16 domains, ratio 2.0 | 16 domains, ratio 2.6 |", lines
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
