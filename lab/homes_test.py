"""Tests of the homes of a comparison's domains. Run by `make unit`."""

import unittest

import homes

NODE_OF_CPU = [0, 0, 1, 1]


def marks(*fetched):
    """Marks of one CPU a node, which fetched so many lines from each node since the first."""
    begin = [{"node": node, "fetched": [7, 7]} for node in range(2)]
    end = [
        {"node": node, "fetched": [7 + count for count in counts]}
        for node, counts in enumerate(fetched)
    ]
    return [{"vcpus": begin}, {"vcpus": end}]


def domain(*mib):
    return {"memory_bytes": {str(node): count << 20 for node, count in enumerate(mib)}}


class Homes(unittest.TestCase):
    def test_xen_chooses_by_cpus_and_nearside_by_nodes(self):
        xen = {"placement": [{"soft_affinity": it} for it in ("2-3", "all", "0,2", "1")]}
        found = [homes.chosen_nodes(xen, number, NODE_OF_CPU) for number in range(4)]
        self.assertEqual(found, [[1], [], [0, 1], [0]])
        nearside = {"homes": {"d0": [1], "d1": [0, 1]}, "placement": None}
        self.assertEqual(homes.chosen_nodes(nearside, 1, NODE_OF_CPU), [0, 1])
        self.assertEqual(homes.chosen_nodes({"homes": None}, 0, NODE_OF_CPU), [])

    def test_a_few_pages_on_a_node_are_no_memory_there(self):
        self.assertEqual(homes.memory_nodes(domain(1, 120)), [1])
        self.assertEqual(homes.memory_nodes(domain(2, 120)), [0, 1])

    def test_lines_are_counted_by_memory_and_by_the_cpu_that_used_them(self):
        # CPU 0 fetched 10 lines of node 0 and 20 of node 1; CPU 1 fetched 30 and 40.
        lines = homes.lines_by_user({"marks": marks((10, 20), (30, 40))})
        self.assertEqual(lines, [[10, 30], [20, 40]])

    def test_a_row_has_choice_memory_and_lines(self):
        result = {
            "homes": {"d0": [0], "d1": [1]},
            "marks": marks((10, 20), (30, 60)),
            "domains": [domain(64, 0), domain(16, 48)],
        }
        lines = homes.lines_by_user(result)
        self.assertEqual(
            [homes.row(result, number, lines, NODE_OF_CPU) for number in range(2)],
            [
                "| d0 | 64 MiB | 0 | 0 | 100.0 % | 25.0 % | 75.0 % | 25.0 % | d1 |",
                "| d1 | 64 MiB | 1 | 0, 1 | 75.0 % | 25.0 % | 75.0 % | 58.3 % | d0 |",
            ],
        )

    def test_a_failed_trial_has_no_table(self):
        self.assertEqual(homes.tables({"failed": None}), "")


if __name__ == "__main__":
    unittest.main()
