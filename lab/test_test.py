"""Tests of how lab/test shares time among guests, and counts. Run by `make unit`."""

import importlib.machinery
import importlib.util
import unittest

from common import LAB

loader = importlib.machinery.SourceFileLoader("lab_test", str(LAB / "test"))
lab_test = importlib.util.module_from_spec(importlib.util.spec_from_loader("lab_test", loader))
loader.exec_module(lab_test)

CUT = """
running 4 tests
test claims::one ... ok
test claims::two ... some words
ok
test claims::three ... {result}
test claims::four ... """


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

    def test_without_minutes_each_has_its_own_limit(self):
        share = lab_test.Share(None, 2, 1, 0)
        self.assertEqual(share.begin(7200, 10**6), 7200)


class Counting(unittest.TestCase):
    def cut(self, output):
        summary = lab_test.Summary()
        return summary, summary.add_cut("four_nodes", output, 9)

    def test_a_guest_that_is_cut_counts_the_tests_that_ended(self):
        summary, line = self.cut(CUT.format(result="ok"))
        self.assertEqual(line, "four_nodes: passed 2 of 4 tests within its share of the time, 9 s")
        self.assertTrue(summary.all_passed() and summary.is_cut)
        self.assertEqual(summary.counts, [2, 0, 0])

    def test_a_failure_in_it_stays_one(self):
        summary, line = self.cut(CUT.format(result="FAILED"))
        self.assertEqual(line, "four_nodes: failed 2 of 4 tests within its share of the time, 9 s")
        self.assertFalse(summary.all_passed())
        self.assertEqual(summary.failed, ["four_nodes: claims::three"])

    def test_one_that_ended_no_test_has_timed_out(self):
        summary, line = self.cut("running 4 tests\ntest claims::one ... ")
        self.assertEqual(line, "four_nodes: timed out in claims::one after 9 s")
        self.assertFalse(summary.all_passed())


if __name__ == "__main__":
    unittest.main()
