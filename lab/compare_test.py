"""Tests of lab/compare: its requests and its results. Run by `make unit`."""

import contextlib
import io
import re
import sys
import tempfile
import unittest
import unittest.mock
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import required
from common import LAB, LabError
from contenders import BOUNDS, CONTENDERS
from page import Part
from fakes import FakeRunner, load_program


compare = load_program("compare")


class Options(unittest.TestCase):
    def parse(self, *words):
        with (
            unittest.mock.patch.object(sys, "argv", ["lab/compare", *words]),
            contextlib.redirect_stderr(io.StringIO()) as said,
        ):
            try:
                return compare.parse_options(), ""
            except SystemExit as end:
                return end.code, said.getvalue()

    def test_workloads_are_those_of_the_program(self):
        source = (LAB / "workloads/src/workload.rs").read_text()
        self.assertEqual(
            tuple(re.findall(r'Workload \{\s*name: "([\w-]+)"', source)), compare.WORKLOADS
        )

    def test_a_workload_that_there_is_not_is_refused_at_once(self):
        code, said = self.parse("warehose")
        self.assertEqual(code, 2)
        self.assertIn("'warehouse', 'skewed'", said)

    def test_there_are_one_to_four_builds(self):
        self.assertEqual(self.parse("--builds", "4")[0].builds, 4)
        for builds in ("0", "5"):
            self.assertEqual(self.parse("--builds", builds)[0], 2)

    def test_the_default_is_the_warehouse(self):
        options, _ = self.parse("--seeds", "2")
        self.assertEqual(
            (options.workload, options.jobs, options.asked),
            ("warehouse", None, "lab/compare --seeds 2"),
        )
        self.assertEqual(
            (options.machine, options.domains, options.seeds, options.ratios),
            ("x460-small", [4, 8, 12, 16], 2, []),
        )

    def test_a_queue_before_mutexes_is_for_the_workload_with_mutexes(self):
        for words, has_queue in (("lock", True), ("warehouse", False), ("--required", True)):
            options, _ = self.parse(words)
            self.assertEqual("queue" in options.contenders, has_queue, words)
            self.assertEqual(options.contenders[:2], ["stock", "balancing"])

    def test_options_that_quick_and_required_settle_are_refused(self):
        options, _ = self.parse("--quick", "text", "--machine", "pairs")
        self.assertEqual(
            (options.workload, options.machine, options.contenders),
            ("text", "pairs", ["stock", "nearside"]),
        )
        options, _ = self.parse("--quick")
        self.assertEqual((options.seeds, options.builds), (1, 1))
        options, _ = self.parse("--required", "--contenders", "stock")
        self.assertEqual((options.contenders, options.seeds), (["stock"], 1))
        for words in (
            "--quick --ratios 1.5,2.0",
            "--quick --domains 8",
            "--required warehouse",
            "--required --machine x460-small",
            "--required --domains 4",
            "--required --seeds 1",
            "--required --builds 2",
            "--quick --builds 1",
            "--required --ratios 2",
            "--required --debug",
        ):
            with self.subTest(words):
                code, said = self.parse(*words.split())
                self.assertEqual(code, 2)
                self.assertIn(" goes without ", said)


class Comparison(unittest.TestCase):
    def test_a_comparison_leaves_its_table_and_how_it_was_made(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "machines").mkdir()
            asked = "lab/compare warehouse --domains 2 --ratios 1.5,2.0"
            options = SimpleNamespace(
                results=Path(folder),
                required=False,
                found=False,
                homes=False,
                quick=False,
                debug=False,
                jobs=None,
                asked=asked,
                seeds=1,
                builds=1,
            )
            vars(options).update(
                workload="warehouse", machine="x460-small", ratios=[1.5, 2.0], domains=[2]
            )
            options.contenders = ["stock", "nearside"]
            with (
                contextlib.redirect_stdout(io.StringIO()),
                unittest.mock.patch.object(compare, "call", lambda *_: "a/6.1-amd64/b"),
            ):
                code = compare.compare(options, runner_of=lambda *_: FakeRunner())
            self.assertEqual(code, 1)
            text = (Path(folder) / "warehouse.x460-small.ratios-1.5-2.0.md").read_text()
            self.assertTrue(
                text.startswith(
                    f"Written by `{asked}` (2026-11-23, commit 1234567, Linux 7.1, QEMU 10.0, "
                ),
                text,
            )
            self.assertEqual(text.count("Without a result: nearside."), 2)
            self.assertTrue((Path(folder) / "warehouse.x460-small.2-domains.ratios.svg").exists())

    def test_results_that_cannot_be_kept_are_refused_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "file"
            file.touch()
            for results in (file, file / "below", Path("/proc/results"), Path("/proc")):
                with (
                    self.subTest(results),
                    self.assertRaisesRegex(LabError, f"^--results {results}: "),
                ):
                    compare.hold(results)


class Required(unittest.TestCase):
    def trials(self):
        """All of the set; a machine at a ratio is named by both."""
        return dict.fromkeys(
            trial
            for part in required.SET
            for ratio in part.ratios or ("",)
            for trial in compare.trials_of(
                replace(part, machine=part.machine + str(ratio), ratios=()), Path()
            )
        )

    def test_it_is_no_more_than_320_guests(self):
        # Of skewed's domains one pin knows what the other does not.
        guests = [
            trial
            for trial in self.trials()
            if trial.contender != "pin-oracle" or trial.workload == "skewed"
        ]
        self.assertLessEqual(len(guests), 320)
        self.assertLessEqual({trial.contender for trial in guests}, set(CONTENDERS))
        self.assertLessEqual({trial.workload for trial in guests}, set(compare.WORKLOADS))

    def test_each_requirement_has_three_seeds_and_two_builds(self):
        runs = {(seed, build) for seed in (1, 2, 3) for build in (1, 2)}
        pairs = [
            (requirement.place(), name)
            for requirement in required.REQUIRED
            for name in ("nearside", *requirement.others)
            if name not in BOUNDS
        ]
        pairs += [(place, name) for place in required.SERVED for name in ("stock", "nearside")]
        for place, name in pairs:
            found = {
                (trial.seed, trial.build)
                for trial in self.trials()
                if (trial.workload, trial.domains, trial.machine) == place
                and trial.contender == name
            }
            self.assertEqual(found, runs, (place, name))

    def compare(self, page, runner, **changes):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "machines").mkdir()
            options = SimpleNamespace(
                results=Path(folder),
                required=True,
                found=False,
                homes=False,
                debug=False,
                jobs=2,
                contenders=list(CONTENDERS),
            )
            vars(options).update(changes)
            with (
                contextlib.redirect_stdout(io.StringIO()),
                unittest.mock.patch.object(compare, "call", lambda *_: "a/6.1-amd64/b"),
            ):
                code = compare.compare(options, page, lambda *_: runner)
            return code, (Path(folder) / "commands").read_text()

    def page(self, folder):
        page = Path(folder) / "page.md"
        part = Part(page, required.PROGRAM)
        page.write_text(f"{part.begin}\n{part.end}\n")
        return page

    def test_known_results_of_other_contenders_are_written_and_missing_ones_named(self):
        with tempfile.TemporaryDirectory() as folder:
            page, runner = self.page(folder), FakeRunner(found=["balancing"])
            code, commands = self.compare(page, runner, contenders=["stock"])
            self.assertEqual(code, 0)
            self.assertEqual(set(runner.ran), {"stock"})
            text = page.read_text()
            self.assertRegex(text, rf"\| {CONTENDERS['balancing']} \| 100 ms, 1.5 x \|")
            self.assertIn("- warehouse, 16 domains on x460-small: nearside, pin-naive,", text)
            self.assertIn("\n\nThe others at 1234567 (2026-11-23).\n", text)
            self.assertIn("results of 2026-11-23, commit 1234567, Linux 7.1, QEMU 10.0,", text)
            self.assertTrue(
                (Path(folder) / "images/warehouse.x460-small.16-domains.ratios.svg").exists()
            )
            self.assertIn("# stock", commands)

    def test_a_failed_guest_leaves_the_other_results_and_the_exit_code_1(self):
        with tempfile.TemporaryDirectory() as folder:
            page = self.page(folder)
            code, _ = self.compare(page, FakeRunner(), contenders=["stock", "nearside"])
            self.assertEqual(code, 1)
            self.assertIn(CONTENDERS["stock"], page.read_text())

    def test_a_page_without_marks_is_refused_before_anything_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            page, runner = Path(folder) / "page.md", FakeRunner()
            page.write_text("no marks")
            with self.assertRaises(LabError):
                self.compare(page, runner)
            self.assertEqual(runner.ran, [])


if __name__ == "__main__":
    unittest.main()
