"""Tests of the figures of lab/replicate. Run by `make unit`."""

import unittest

import replicate_figures as figures


def vcpu(node, programs, kernel, lines):
    code = [own + other for own, other in zip(programs, kernel, strict=True)]
    return {
        "node": node,
        "user_code_fetched": programs,
        "code_fetched": code,
        "fetched": lines,
        "remote_cache_hits": 0,
        "stall_ns": 0,
        "now_ns": 0,
        "idle_ns": 0,
    }


def result(total_ms, programs):
    """Of two nodes with a CPU each; node 0 has the kernel."""
    begin = [vcpu(node, [0, 0], [0, 0], [0, 0]) for node in (0, 1)]
    end = [vcpu(node, programs[node], [500, 0], [2000, 2000]) for node in (0, 1)]
    end = [{**one, "now_ns": 10_000_000, "stall_ns": 2_500_000} for one in end]
    return {"total_ms": total_ms, "marks": [{"vcpus": begin}, {"vcpus": end}]}


ORIGINALS = result(200, ([1000, 0], [3000, 0]))
COPIES = result(160, ([1000, 0], [0, 3000]))


class Figures(unittest.TestCase):
    def test_text_is_local_where_the_cpus_own_node_has_it(self):
        self.assertEqual(figures.local_text_share(ORIGINALS), 0.25)
        self.assertEqual(figures.local_text_share(COPIES), 1)

    def test_a_gain_is_of_a_pair_with_both_results(self):
        by_arm = {"originals": [ORIGINALS, None, ORIGINALS], "copies": [COPIES, COPIES, None]}
        self.assertEqual(figures.gains(by_arm), [0.25])

    def test_the_table_tells_programs_from_the_kernel(self):
        text = figures.table({"originals": [ORIGINALS], "copies": [None]}, 480)
        row, missing = text.splitlines()[2:]
        columns = [column.strip() for column in row.strip("|").split("|")]
        self.assertEqual(columns[:2], ["originals", "2400"])
        self.assertEqual(columns[5:8], ["4.0 / 0.0", "25.0%", "1.0 / 0.0"])
        self.assertIn("no result", missing)
        self.assertEqual(len({line.count("|") for line in text.splitlines()}), 1, text)


if __name__ == "__main__":
    unittest.main()
