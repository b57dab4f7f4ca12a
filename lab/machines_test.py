"""Tests of machine files: what they give, and that every mistake is named with its place. Run by `make unit`."""

import unittest
from dataclasses import replace

import machines
from common import LabError

# Four nodes in a ring, with a switch between 0 and 2 that is slower than the ring.
RING = """\
description = "a ring"
insn_ps = 400
distance = [
  [10, 20, 30, 20],
  [20, 10, 20, 30],
  [30, 20, 10, 20],
  [20, 30, 20, 10],
]
latency_ns = [90, 91, 92, 93] # own memory
[cache]
kib = 256
ways = 4

[[node]]
cpus = 1
memory_mib = 256
[[node]]
cpus = 2
memory_mib = 256
bandwidth_mb_per_s = 6000
[[node]]
cpus = 1
memory_mib = 256
[[node]]
cpus = 1
memory_mib = 256

[[link]]
between = [0, 1]
latency_ns = 10
bandwidth_mb_per_s = 1000
[[link]]
between = [1, 2]
latency_ns = 20
[[link]]
between = [2, 3]
latency_ns = 30
[[link]]
between = [3, 0]
latency_ns = 40
[[link]]
between = [0, "switch"]
latency_ns = 100
[[link]]
between = ["switch", 2]
latency_ns = 100
"""


def line_of(text, nth=0):
    """The line of the ring's file that begins so, counted from 1."""
    return [number for number, line in enumerate(RING.splitlines(), 1) if line.startswith(text)][nth]


class Reading(unittest.TestCase):
    def test_lines_take_the_shortest_way(self):
        machine = machines.parse("ring.toml", RING)
        # 0-1-2 takes 30, 0-3-2 takes 70.
        self.assertEqual(machine.routes[0, 2], (0, 1, 2))
        self.assertEqual(machine.latency_ns[0], [90, 101, 122, 133])
        self.assertEqual(machine.latency_ns[2], [120, 111, 92, 123])

    def test_of_equal_ways_the_one_over_fewer_links_then_over_earlier_points(self):
        text = RING.replace("latency_ns = 30", "latency_ns = 20").replace("latency_ns = 40", "latency_ns = 10")
        self.assertEqual(machines.parse("ring.toml", text).routes[0, 2], (0, 1, 2))
        text += '[[link]]\nbetween = [0, 2]\nlatency_ns = 30\n'
        self.assertEqual(machines.parse("ring.toml", text).routes[0, 2], (0, 2))

    def test_a_route_may_be_given(self):
        machine = machines.parse("ring.toml", RING + '[[route]]\nbetween = [2, 0]\nvia = ["switch"]\n')
        self.assertEqual(machine.routes[0, 2], (0, 4, 2))
        self.assertEqual(machine.latency_ns[0][2], 292)
        self.assertEqual(machine.hops(0, 2), [(4, False), (5, False)])
        self.assertEqual(machine.hops(2, 0), [(5, True), (4, True)])

    def test_the_plugin_is_told_links_and_routes(self):
        arguments = machines.parse("ring.toml", RING).plugin_arguments()
        self.assertIn("link=0-1:1000", arguments)
        self.assertIn("link=4-2:0", arguments)
        self.assertIn("route=2-1-0", arguments)
        self.assertIn("node=0x10000000-0x20000000/1-2", arguments)

    def test_memory_beyond_the_hole_is_above_four_gib(self):
        machine = machines.parse("ring.toml", RING.replace("memory_mib = 256", "memory_mib = 1024"))
        low, high = machine.guest_physical(1 << 30, 3 << 30)
        self.assertEqual(low, (1 << 30, 2 << 30))
        self.assertEqual(high, (4 << 30, 5 << 30))

    def test_a_bandwidth_is_unlimited_or_at_least_1(self):
        text = RING.replace("= 6000", "= 0").replace("= 1000", "= 1")
        machine = machines.parse("ring.toml", text)
        self.assertEqual((machine.nodes[1].bandwidth_mb_per_s, machine.links[0].bandwidth_mb_per_s), (0, 1))

    def test_every_machine_of_the_lab_can_be_read(self):
        for name in machines.names():
            with self.subTest(name):
                machine = machines.load(name)
                if name.endswith("-small"):
                    self.assertLessEqual(machine.cpus(), 8)
                    machine.refuse_beyond(available_mib=8192)

    def test_small_machines_keep_what_each_cpu_has(self):
        def each_cpu(machine):
            cpus = machine.nodes[0].cpus
            level = machine.last_level.bytes / cpus if machine.last_level else 0
            return [machine.insn_ps, machine.cache.bytes, level, machine.nodes[0].bandwidth_mb_per_s / cpus]

        for name in machines.names():
            if not name.endswith("-small"):
                continue
            with self.subTest(name):
                small, full = machines.load(name), machines.load(name.removesuffix("-small"))
                self.assertEqual(each_cpu(small), each_cpu(full))
                self.assertEqual((small.latency_ns, small.distance, small.routes), (full.latency_ns, full.distance, full.routes))
                for one, other in zip(small.links, full.links, strict=True):
                    self.assertEqual(one.bandwidth_mb_per_s * full.cpus(), other.bandwidth_mb_per_s * small.cpus())


class Refusing(unittest.TestCase):
    def refuses(self, text, line, *words):
        with self.assertRaises(LabError) as caught:
            machines.parse("ring.toml", text)
        message = str(caught.exception)
        self.assertTrue(message.startswith(f"ring.toml:{line}: "), f"{message!r} is not of line {line}")
        for word in words:
            self.assertIn(word, message)

    def test_no_toml(self):
        self.refuses(RING.replace("insn_ps = 400", "insn_ps = "), line_of("insn_ps"), "column")

    def test_unknown_keys(self):
        self.refuses(RING.replace("ways = 4", "wais = 4"), line_of("ways"), "cache.wais", "unknown key", "ways")
        self.refuses("[nod]\n" + RING, 1, "nod", "unknown key")

    def test_missing_keys_name_their_table(self):
        # [last_level] has a key of that name, too, which must not be pointed at.
        text = RING.replace("ways = 4\n", "") + "[last_level]\nkib = 1024\nways = 16\nns = 20\n"
        self.refuses(text, line_of("[cache]"), "cache.ways: missing")
        self.refuses(RING.replace("insn_ps = 400\n", ""), 1, "insn_ps: missing")

    def test_values_name_key_and_unit(self):
        second = line_of("cpus", 1)
        self.refuses(RING.replace("cpus = 2", "cpus = 0"), second, "node.cpus", "CPUs", "not 0")
        self.refuses(RING.replace("cpus = 2", "cpus = true"), second, "node.cpus")
        self.refuses(RING.replace("cpus = 2", "cpus = 1.5"), second, "whole number")
        self.refuses(RING.replace("= 6000", '= "fast"'), line_of("bandwidth"), "node.bandwidth_mb_per_s", "MB/s", "'fast'")
        self.refuses(RING.replace("= 6000", "= nan"), line_of("bandwidth"), "MB/s")
        self.refuses(RING.replace("= 6000", "= 0.5"), line_of("bandwidth"), "0 (unlimited) or a number from 1 to 1,000,000 MB/s", "not 0.5")
        self.refuses(RING.replace("insn_ps = 400", "insn_ps = -1"), 2, "insn_ps", " ps ")
        self.refuses(RING.replace("kib = 256", "kib = 100"), line_of("kib"), "cache.kib", "power of two")
        self.refuses(RING.replace("memory_mib = 256", "memory_mib = 64", 1), line_of("memory_mib"), "MiB")
        self.refuses(RING.replace("92, 93]", "92]"), line_of("latency_ns"), "latency_ns", "4 numbers in ns")
        self.refuses(RING.replace("92, 93]", "92, -3]"), line_of("latency_ns"), "node 3", "ns")
        self.refuses(RING.replace("[10, 20, 30, 20]", "[10, 9, 30, 20]"), 3, "distance", "from node 0 to node 1")

    def test_more_cpus_or_links_than_any_machine_has(self):
        self.refuses(RING.replace("cpus = 2", "cpus = 4096"), line_of("cpus", 1), "node.cpus: at most 4096 CPUs in all", "not 4097")
        links = "".join(f'[[link]]\nbetween = [0, "s{i}"]\nlatency_ns = 1\n' for i in range(1024))
        self.refuses(RING.split("[[link]]")[0] + links + '[[link]]\nbetween = [0, 1]\n', line_of("[[link]]") + 3073, "at most 1024 links")

    def test_strings_of_several_lines(self):
        text = RING.replace('"a ring"', '"""\n[[node]] \\""" # [\n[cache]\nways = 4\n[ """" # """')
        self.refuses(text.replace("ways = 4\n\n", "ways = 99\n\n"), line_of("ways") + 4, "cache.ways")
        text = RING.replace('"a ring"', "'''\n[[node]]\ncpus = 1 [\\'''")
        self.refuses(text.replace("cpus = 2", "cpus = 0"), line_of("cpus", 1) + 2, "node.cpus")
        self.refuses(RING.replace("a ring", "a\u2028ring").replace("cpus = 2", "cpus = 0"), line_of("cpus", 1), "node.cpus")

    def test_tables_of_the_wrong_kind(self):
        self.refuses(RING.replace("[cache]", "[[cache]]"), line_of("[cache]"), "cache", "[cache]")
        self.refuses("link = 3\n" + RING.split("[[link]]")[0], 1, "link", "[[link]]")
        self.refuses(RING.split("[[node]]")[0], 1, "node", "1 to 64")

    def test_inline_tables_and_dotted_keys(self):
        text = RING.replace("[cache]\nkib = 256\nways = 4\n", "cache = { kib = 256, ways = 99 }\n")
        self.refuses(text, line_of("[cache]"), "cache.ways")
        text = RING.replace("[cache]\nkib = 256\nways = 4\n", "cache.kib = 256\ncache.ways = 99\n")
        self.refuses(text, line_of("[cache]") + 1, "cache.ways")

    def test_links_that_cannot_be(self):
        first = line_of("between")
        self.refuses(RING.replace("[0, 1]", "[0, 0]"), first, "link.between", "different ends")
        self.refuses(RING.replace("[0, 1]", "[0, 4]"), first, "node from 0 to 3")
        self.refuses(RING.replace("[0, 1]", "[0, true]"), first, "node from 0 to 3")
        self.refuses(RING.replace("[0, 1]", "7"), first, "link.between")
        self.refuses(RING.replace("[1, 2]", "[1, 0]"), line_of("between", 1), "already")
        self.refuses(RING.replace("= 1000", "= -1"), line_of("bandwidth", 1), "link.bandwidth_mb_per_s", "MB/s")
        self.refuses(RING.replace("= 1000", "= 0.5"), line_of("bandwidth", 1), "link.bandwidth_mb_per_s", "from 1 to", "not 0.5")
        self.refuses(RING.replace("latency_ns = 20\n", ""), line_of("[[link]]", 1), "link.latency_ns: missing")
        alone = RING.replace("between = [2, 3]", 'between = [2, "x"]').replace("between = [3, 0]", 'between = ["y", 0]')
        self.refuses(alone, first, "no link leads from node 0 to node 3")

    def test_routes_that_cannot_be(self):
        at = len(RING.splitlines())
        self.refuses(RING + "[[route]]\nbetween = [0, 2]\nvia = [3, 1]\n", at + 3, "route.via", "no link between node 3 and node 1")
        self.refuses(RING + "[[route]]\nbetween = [0, 2]\nvia = ['hub']\n", at + 3, "route.via", "'hub'")
        self.refuses(RING + "[[route]]\nbetween = [0, 'switch']\nvia = []\n", at + 2, "route.between", "two different nodes")


class Emulating(unittest.TestCase):
    def refuses(self, text, available_mib, line, *words):
        machine = machines.parse("big.toml", text)
        with self.assertRaises(LabError) as caught:
            machine.refuse_beyond(available_mib)
        message = str(caught.exception)
        self.assertTrue(message.startswith(f"big.toml:{line}: "), message)
        for word in words:
            self.assertIn(word, message)

    def test_what_fits_is_not_refused(self):
        machines.parse("ring.toml", RING).refuse_beyond(available_mib=1024)

    def test_too_many_cpus(self):
        self.refuses(RING.replace("cpus = 2", "cpus = 64"), 65536, line_of("cpus", 1), "node.cpus: 67 CPUs", "only 64")

    def test_too_much_memory(self):
        self.refuses(RING, 1023, line_of("memory_mib", 3), "node.memory_mib: 1024 MiB", "1023 MiB")
        self.refuses(RING.replace("= 256\n[", "= 131072\n["), 1 << 20, line_of("memory_mib", 2), "only 260096 MiB")

    def test_too_many_links_on_a_way(self):
        chain = RING.split("[[link]]")[0]
        points = [0, *(f'"s{i}"' for i in range(8)), 1, 2, 3]
        for one, other in zip(points, points[1:]):
            chain += f"[[link]]\nbetween = [{one}, {other}]\nlatency_ns = 1\n"
        self.refuses(chain, 65536, line_of("between"), "links on one way", "only 8")


class Derived(unittest.TestCase):
    def test_only_latencies_differ(self):
        machine = machines.load("pairs")
        flat = [[90] * 4] * 4
        derived = machines.parse("derived.toml", machines.text_of(replace(machine, latency_ns=flat)))
        self.assertEqual(derived.latency_ns, flat)
        for same in ("insn_ps", "distance", "cache", "prefetch", "last_level", "last_level_ns", "nodes"):
            self.assertEqual(getattr(derived, same), getattr(machine, same), same)

    def test_a_machine_is_the_same_when_written_and_read(self):
        for name in ("pairs", "one-node", "x460-small", "opteron-8-asymmetric-small", "wildfire-gs320-small"):
            machine = machines.load(name)
            again = machines.parse("again.toml", machines.text_of(machine))
            self.assertEqual(replace(again, name=machine.name, file=machine.file), machine, name)

    def test_a_description_may_have_any_characters(self):
        description = "q\"uoted \\ \n \x00\x7f\x85\u2028 Köln \U0001f600"
        machine = replace(machines.load("pairs"), description=description)
        self.assertEqual(machines.parse("again.toml", machines.text_of(machine)).description, description)

    def test_a_node_nearer_than_local_memory_has_no_ratio(self):
        own_ns = RING.replace("[90, 91, 92, 93]", "[90, 191, 92, 93]")
        with self.assertRaisesRegex(LabError, "node 0 is nearer to node 1 than its own"):
            machines.at_ratio(machines.parse("ring.toml", own_ns), 2.0)

    def test_the_farthest_node_is_at_the_ratio_and_the_others_in_proportion(self):
        for name in ("pairs", "x460-small", "opteron-8-asymmetric-small"):
            machine = machines.load(name)
            derived = machines.parse("derived.toml", machines.text_of(machines.at_ratio(machine, 2.0)))
            own_ns = [row[node] for node, row in enumerate(machine.latency_ns)]
            more = [[ns - own_ns[i] for ns in row] for i, row in enumerate(machine.latency_ns)]
            ratios = [ns / own_ns[i] for i, row in enumerate(derived.latency_ns) for ns in row]
            self.assertAlmostEqual(max(ratios), 2.0, places=3, msg=name)
            by = [(ns - own_ns[i]) / more[i][j] for i, row in enumerate(derived.latency_ns) for j, ns in enumerate(row) if more[i][j]]
            self.assertAlmostEqual(min(by), max(by), places=3, msg=name)
        with self.assertRaises(LabError):
            machines.at_ratio(machines.load("one-node"), 2.0)


if __name__ == "__main__":
    unittest.main()
