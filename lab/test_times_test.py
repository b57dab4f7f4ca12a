"""Tests of test_times: durations from libtest's lines. Run by `make unit`."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import test_times
from test_times import Lines, Timer, slowest, threads_of

PROGRAM = test_times.__file__


class Durations(unittest.TestCase):
    def test_one_thread_runs_from_result_to_result(self):
        lines = Lines(Timer(), 0)
        lines.take(b"booting\nrunning 3 tests\n", 10)
        lines.take(b"test a::one ... ", 11)
        lines.take(b"ok\ntest two ... ignored, too long\n", 15)
        lines.take(b"test three ... FAILED\r\n\ntest result: FAILED. 1 passed\n", 21.5)
        self.assertEqual(lines.durations, [(5, "a::one"), (0, "two"), (6.5, "three")])

    def test_a_test_starts_when_an_earlier_one_ends(self):
        # Two threads: a and b start at 0, c when b ends at 2, d when a ends at 3.
        lines = Lines(Timer(["a", "b", "c", "d"], 2, 0), 0)
        for name, now_s in ((b"b", 2), (b"a", 3), (b"d", 4), (b"c", 7)):
            lines.take(b"test %s ... ok\n" % name, now_s)
        self.assertEqual(lines.durations, [(2, "b"), (3, "a"), (1, "d"), (5, "c")])

    def test_lines_of_other_programs_are_no_results(self):
        lines = Lines(Timer(), 0)
        lines.take(b"test result: ok. 3 passed\nthis test ... ok\ntest - doc ... ok\n", 3)
        self.assertEqual(lines.durations, [])

    def test_threads_are_those_that_libtest_takes(self):
        self.assertEqual(threads_of(["x", "--test-threads=3"]), 3)
        self.assertEqual(threads_of(["--test-threads", "5"]), 5)


class Slowest(unittest.TestCase):
    def test_the_slowest_come_first(self):
        self.assertEqual(slowest("1.5\ta\n20\tb c\nbroken\n3\td\n", 2), [(20, "b c"), (3, "d")])

    def test_a_command_keeps_its_exit_code_and_its_duration(self):
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ, NEARSIDE_TEST_TIMES=f"{folder}/times")

            def call(*words):
                command = [sys.executable, PROGRAM, *words]
                return subprocess.run(
                    command, env=environment, capture_output=True, text=True, check=False
                )

            self.assertEqual(call("time", "it", "--", "sh", "-c", "exit 3").returncode, 3)
            self.assertRegex((Path(folder) / "times").read_text(), r"^\d+\.\d{3}\tit\n$")
            shown = call("show")
            self.assertEqual(shown.returncode, 0)
            self.assertRegex(shown.stdout, r"^the 1 slowest tests:\n +\d+\.\d s  it\n$")
            for wrong in ([], ["run"], ["time", "x"], ["show", "many"]):
                self.assertEqual(call(*wrong).returncode, 2, wrong)

    def test_an_executable_is_listed_for_the_order_of_its_tests(self):
        with tempfile.TemporaryDirectory() as folder:
            executable = Path(folder) / "deps" / "x-0123"
            executable.parent.mkdir()
            listed = r"printf 'a: test\nb: test\nb: benchmark\n'"
            ran = r"printf 'running 2 tests\ntest b ... ok\ntest a ... ok\n'; exit 101"
            executable.write_text(f'#!/bin/sh\ncase "$*" in *--list*) {listed};; *) {ran};; esac\n')
            executable.chmod(0o755)
            times = Path(folder) / "times"
            environment = dict(os.environ, NEARSIDE_TEST_TIMES=str(times))
            command = [sys.executable, PROGRAM, "run", executable, "--test-threads=2"]
            done = subprocess.run(command, env=environment, capture_output=True, check=False)
            self.assertEqual(done.returncode, 101)
            names = [line.split("\t")[1] for line in times.read_text().splitlines()]
            self.assertEqual(names, ["x: b", "x: a"])


if __name__ == "__main__":
    unittest.main()
