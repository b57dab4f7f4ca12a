"""Tests of lab/numatune. Run by `make unit`."""

import json
import unittest

import machines
from common import LabError
from fakes import load_program

numatune = load_program("numatune")


def mark(first, second):
    """A report of two vCPUs, one on each node, with the lines that each fetched from both nodes."""
    vcpus = [{"node": node, "fetched": lines} for node, lines in enumerate((first, second))]
    return json.dumps({"what": "mark", "vcpus": vcpus})


class Measured(unittest.TestCase):
    def test_local_and_remote_lines_are_counted_between_the_marks(self):
        # The vCPU of node 0 fetched 30 lines of node 0; that of node 1 fetched 20 of node 0 and 10
        # of its own.
        counters = "\n".join((mark([100, 0], [5, 7]), mark([130, 0], [25, 17])))
        found = numatune.measured('boot\n{"kernel":"copy","mb_per_s":12.5}\n', counters)
        self.assertEqual(found, numatune.Measured({"copy": 12.5}, 40, 20))
        self.assertAlmostEqual(found.local_share, 2 / 3)

    def test_a_guest_that_ended_early_has_no_result(self):
        for printed, counters in (
            ("", "\n".join([mark([0, 0], [0, 0])] * 2)),
            ('{"kernel":"copy","mb_per_s":1}', mark([0, 0], [0, 0])),
        ):
            with self.assertRaises(LabError):
                numatune.measured(printed, counters)

    def test_arrays_are_four_times_as_large_as_the_caches(self):
        # 8 MiB of last level on each of two nodes: 64 MiB in all, 32 MiB a cell.
        self.assertEqual(numatune.array_mib(machines.load("xeon-2s-small")), 32)

    def test_gains_stand_beside_both_rates(self):
        before = numatune.Measured({"copy": 10_000.0}, 1_000_000, 3_000_000)
        after = numatune.Measured({"copy": 17_800.0}, 4_000_000, 0)
        lines = numatune.table(before, after)
        self.assertIn("| copy, MB/s | 10,000 | 17,800 | +78% |", lines)
        self.assertIn("| remote lines, millions | 3.00 | 0.00 | |", lines)
        self.assertIn("| local share | 25.0% | 100.0% | |", lines)


if __name__ == "__main__":
    unittest.main()
