"""Tests of which scheduler the results of docs/performance/comparison.md are of. Run by `make
unit`."""

import tempfile
import unittest
from pathlib import Path

import required
from common import LabError
from page import Part


class Scheduler(unittest.TestCase):
    def check(self, written, by_hand=""):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.md"
            part = Part(path, required.PROGRAM)
            path.write_text(f"# A page\n\n{by_hand}\n\n{part.begin}\n\n{written}\n{part.end}\n")
            required.check_scheduler(path, "abc1")

    def test_results_of_the_present_scheduler_pass(self):
        self.check("Scheduler of these results: `abc1`.\n")

    def test_results_of_another_scheduler_are_refused_with_the_remedy(self):
        for written in (
            "Scheduler of these results: `abc2`.\n",
            "Scheduler of these results: `abc1`, `abc2`.\n",
            "Scheduler of these results: `unknown`.\n",
            "Results without a scheduler.\n",
        ):
            with self.subTest(written), self.assertRaises(LabError) as refused:
                self.check(written)
            self.assertIn("Run `lab/compare --required`", str(refused.exception))
            self.assertIn("Carried over to `abc1`: REASON", str(refused.exception))

    def test_results_may_be_carried_over_for_a_reason(self):
        before = "Scheduler of these results: `abc2`.\n"
        self.check(before, "Carried over to `abc1`: a counter was renamed.")
        for by_hand in ("Carried over to `abc1`:", "Carried over to `abc3`: a new name."):
            with self.subTest(by_hand), self.assertRaises(LabError):
                self.check(before, by_hand)
        with self.assertRaises(LabError):
            self.check(f"{before}\nCarried over to `abc1`: not written by hand.\n")


if __name__ == "__main__":
    unittest.main()
