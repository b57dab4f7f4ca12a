"""Tests of how lab/test shares time among guests, and counts. Run by `make unit`."""

import contextlib
import importlib.machinery
import importlib.util
import io
import unittest

from common import LAB

loader = importlib.machinery.SourceFileLoader("lab_test", str(LAB / "test"))
lab_test = importlib.util.module_from_spec(importlib.util.spec_from_loader("lab_test", loader))
loader.exec_module(lab_test)

CUT = """
running 6 tests
test claims::one ... ok
test claims::two ... ignored, it takes long
test claims::three ... some words
{three}
test claims::four ... {four}
test claims::five ... """


class Sharing(unittest.TestCase):
    def test_what_a_guest_leaves_is_for_those_after_it(self):
        share = lab_test.Share(minutes=40, jobs=2, count=4, now_s=0)
        self.assertEqual(share.begin(1800, 0), 1200)
        self.assertEqual(share.begin(600, 0), 600, "its own limit")
        share.ended()
        self.assertEqual(share.begin(7200, 300), 1400, "of 2,100 s, with three guests left")
        share.ended()
        share.ended()
        self.assertEqual(share.begin(7200, 1000), 1400, "all that is left, and no more")
        self.assertEqual(share.begin(7200, 2290), 0, "it would not boot in that time")

    def test_the_first_ones_run_where_there_is_no_time_for_all(self):
        share = lab_test.Share(minutes=10, jobs=1, count=16, now_s=0)
        self.assertEqual(share.begin(7200, 0), 480)
        share.ended()
        self.assertEqual([share.begin(7200, 480) for _ in range(15)], [0] * 15)

    def test_without_minutes_each_has_its_own_limit(self):
        share = lab_test.Share(None, 2, 1, 0)
        self.assertEqual(share.begin(7200, 10**6), 7200)


class Counting(unittest.TestCase):
    def cut(self, output):
        summary = lab_test.Summary()
        line = summary.add_cut("four_nodes", output, 9)
        with contextlib.redirect_stdout(io.StringIO()):
            return summary, line, summary.show(9)

    def test_a_guest_that_is_cut_counts_the_tests_that_ended(self):
        summary, line, is_ok = self.cut(CUT.format(three="ok", four="ok"))
        passed = "four_nodes: passed 4 of 6 tests, then claims::five: "
        self.assertEqual(line, passed + "its share of the time was over after 9 s")
        self.assertTrue(is_ok)
        self.assertEqual(summary.counts, [3, 0, 1])

    def test_a_failure_in_it_stays_one(self):
        for three, four, failed in (("FAILED", "ok", "three"), ("ok", "FAILED", "four")):
            with self.subTest(failed):
                summary, line, is_ok = self.cut(CUT.format(three=three, four=four))
                self.assertTrue(line.startswith("four_nodes: failed 4 of 6 tests"), line)
                self.assertFalse(is_ok)
                self.assertEqual(summary.failed, [f"four_nodes: claims::{failed}"])
                self.assertEqual(summary.counts, [2, 1, 1])

    def test_one_whose_first_test_has_not_ended_is_cut(self):
        summary, line, _ = self.cut("running 4 tests\ntest claims::one ... ")
        cut = "four_nodes: ended none of 4 tests, and was in claims::one: "
        self.assertEqual(line, cut + "its share of the time was over after 9 s")
        self.assertEqual((summary.failed, summary.all_passed()), ([], True))

    def test_one_that_began_no_test_has_timed_out(self):
        for output in ("", "booting", "running 4 tests"):
            with self.subTest(output):
                _, line, is_ok = self.cut(output)
                self.assertEqual(line, "four_nodes: timed out after 9 s")
                self.assertFalse(is_ok)

    def test_a_run_without_any_test_has_failed(self):
        summary = lab_test.Summary()
        summary.add_none("four_nodes")
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertFalse(summary.show(9))


if __name__ == "__main__":
    unittest.main()
