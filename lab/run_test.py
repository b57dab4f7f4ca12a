"""Tests of lab/run: its options, and where it keeps counters. Run by `make unit`."""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path

from common import LabError
from guest_process import boot_seconds
from modelled_guest import check_counters, keep_counters
from run_options import parse_options


class Options(unittest.TestCase):
    def refuses(self, *words):
        with (
            contextlib.redirect_stderr(io.StringIO()) as said,
            self.assertRaises(SystemExit) as end,
        ):
            parse_options([*words, "--", "true"])
        self.assertEqual(end.exception.code, 2, words)
        self.assertIn(words[0], said.getvalue())

    def test_arguments_are_words_as_a_shell_splits_them(self):
        options = parse_options(["--append", "a 'b c'", "--append", "d", "--qemu", "-m 1"])
        self.assertEqual((options.append, options.qemu), (["a 'b c'", "d"], ["-m 1"]))
        self.refuses("--append", '"x')
        self.refuses("--qemu", '"x')

    def test_variables_need_names_that_a_shell_accepts(self):
        options = parse_options(["--env", "A_1=b=c d", "--env", "_b"])
        self.assertEqual(options.env, ["A_1=b=c d", "_b"])
        for setting in ("A B=c", "1A=b", "=b", "", "A-B", "\u00c4=b", "A\n=b"):
            self.refuses("--env", setting)

    def test_numbers_out_of_range_are_refused(self):
        options = parse_options(
            "--quantum-us 0.5 --seed 0 --timeout 0 --time-limit 0 --smt 2".split()
        )
        self.assertEqual(
            (options.quantum_us, options.seed, options.timeout, options.time_limit, options.smt),
            (0.5, 0, 0, 0, 2),
        )
        for option, values in {
            "--quantum-us": ("0", "nan", "-1", "inf", "1e-9"),
            "--seed": ("-1", "1000000000000001"),
            "--timeout": ("nan", "-1", "inf"),
            "--time-limit": ("nan", "-1", "inf"),
            "--smt": ("0", "-2"),
        }.items():
            for value in values:
                self.refuses(option, value)


class Boots(unittest.TestCase):
    def test_a_guest_that_hangs_while_it_boots_leaves_time_for_another_start(self):
        for timeout, seconds in ((None, 600), (30, 30), (480, 160), (900, 300), (5400, 600)):
            self.assertEqual(boot_seconds(timeout), seconds, timeout)


class Counters(unittest.TestCase):
    def test_a_place_that_cannot_keep_them_is_refused_before_the_guest_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            for wanted in ("/nosuch/x", folder, "/proc/x", "/etc/passwd/x"):
                with (
                    self.subTest(wanted),
                    self.assertRaisesRegex(LabError, f"^--counters {wanted}: "),
                ):
                    check_counters(wanted)
            check_counters(f"{folder}/fine")
            self.assertEqual(list(Path(folder).iterdir()), [])
            check_counters("/dev/null")

    def test_failing_to_keep_them_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            counters, kept = Path(folder) / "counters", Path(folder) / "kept"
            counters.write_text("{}")
            keep_counters(counters, str(kept), ended=True)
            self.assertEqual(kept.read_text(), "{}")
            with self.assertRaisesRegex(LabError, "^--counters /nosuch/x: "):
                keep_counters(counters, "/nosuch/x", ended=True)


if __name__ == "__main__":
    unittest.main()
