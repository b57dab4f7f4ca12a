"""Tests of modelled machines: their files, their limits, machines derived from them. Run by
`make unit`. How files are read, and every mistake in them, is tested in
crates/topology/src/machine_file/tests.rs."""

import os
import tempfile
import unittest
import unittest.mock
from dataclasses import replace
from pathlib import Path

import machines
import nearside
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


def parse(text, name="ring"):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.toml"
        path.write_text(text)
        return machines.load(str(path))


class Reading(unittest.TestCase):
    def test_routes_and_latencies_come_from_the_product(self):
        machine = parse(RING)
        # 0-1-2 takes 30, 0-3-2 takes 70.
        self.assertEqual(machine.routes[0, 2], (0, 1, 2))
        self.assertEqual(machine.latency_ns[0], [90, 101, 122, 133])
        self.assertEqual((machine.name, machine.description, machine.cpus()), ("ring", "a ring", 5))
        self.assertEqual(machine.distance[0], [10, 20, 30, 20])
        self.assertEqual(machine.nodes[1], machines.Node(2, 256 << 20, 6000))
        self.assertEqual((machine.cache, machine.last_level), (machines.Cache(256 << 10, 4), None))

    def test_hops_name_links_and_their_direction(self):
        machine = parse(RING + '[[route]]\nbetween = [2, 0]\nvia = ["switch"]\n')
        self.assertEqual(machine.latency_ns[0][2], 292)
        self.assertEqual(machine.hops(0, 2), [(4, False), (5, False)])
        self.assertEqual(machine.hops(2, 0), [(5, True), (4, True)])
        self.assertEqual(machine.hops(1, 1), [])

    def test_the_plugin_gets_a_remote_cache_where_the_machine_has_one(self):
        cache = "[remote_cache]\nkib = 1024\nways = 4\nns = 95\n"
        arguments = parse(RING.replace("[[node]]", f"{cache}[[node]]", 1)).plugin_arguments()
        self.assertIn("remote_cache=1048576:4", arguments)
        self.assertIn("remote_cache_ns=95.0", arguments)
        self.assertNotIn("remote_cache", " ".join(parse(RING).plugin_arguments()))

    def test_the_plugin_gets_links_and_routes(self):
        arguments = parse(RING).plugin_arguments()
        self.assertIn("link=0-1:1000.0", arguments)
        self.assertIn("link=4-2:0.0", arguments)
        self.assertIn("route=2-1-0", arguments)
        self.assertIn("node=0x10000000-0x20000000/1-2", arguments)

    def test_memory_beyond_the_hole_is_above_four_gib(self):
        machine = parse(RING.replace("memory_mib = 256", "memory_mib = 1024"))
        low, high = machine.guest_physical(1 << 30, 3 << 30)
        self.assertEqual(low, (1 << 30, 2 << 30))
        self.assertEqual(high, (4 << 30, 5 << 30))

    def test_a_changed_file_is_read_anew(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "m.toml"
            path.write_text(RING)
            self.assertEqual(machines.load(str(path)).insn_ps, 400)
            path.write_text(RING.replace("= 400", "= 4000"))
            self.assertEqual(machines.load(str(path)).insn_ps, 4000)

    def test_every_small_machine_can_be_emulated(self):
        small = [name for name in machines.names() if name.endswith("-small")]
        self.assertGreaterEqual(len(small), 5)
        for name in small:
            with self.subTest(name):
                machine = machines.load(name)
                self.assertLessEqual(machine.cpus(), 8)
                machine.refuse_beyond(available_mib=8192)

    def test_small_machines_keep_each_cpus_share(self):
        def each_cpu(machine):
            node = machine.nodes[0]
            level = machine.last_level.bytes / node.cpus if machine.last_level else 0
            remote = machine.remote_cache.bytes / node.cpus if machine.remote_cache else 0
            bandwidth = node.bandwidth_mb_per_s / node.cpus
            return [machine.insn_ps, machine.cache.bytes, level, remote, bandwidth]

        for name in machines.names():
            if not name.endswith("-small"):
                continue
            with self.subTest(name):
                small, full = machines.load(name), machines.load(name.removesuffix("-small"))
                self.assertEqual(each_cpu(small), each_cpu(full))
                for same in ("latency_ns", "distance", "routes"):
                    self.assertEqual(getattr(small, same), getattr(full, same))
                for one, other in zip(small.links, full.links, strict=True):
                    all_of_small = one.bandwidth_mb_per_s * full.cpus()
                    self.assertEqual(all_of_small, other.bandwidth_mb_per_s * small.cpus())


class Refusing(unittest.TestCase):
    def test_a_mistake_is_named_with_file_line_and_key(self):
        line = RING.splitlines().index("ways = 4") + 1
        with self.assertRaisesRegex(LabError, rf"^/.*/ring.toml:{line}: cache.ways: .* not 99$"):
            parse(RING.replace("ways = 4", "ways = 99"))

    def test_a_machine_without_a_file_is_refused_with_the_known_names(self):
        with self.assertRaisesRegex(LabError, "^no machine 'nosuch'; known are chain, epyc-nps4"):
            machines.load("nosuch")
        with self.assertRaisesRegex(LabError, "^no machine '/nosuch.toml'; known are "):
            machines.load("/nosuch.toml")

    def test_a_folder_is_no_machine_file(self):
        with tempfile.TemporaryDirectory(suffix=".toml") as folder:
            with self.assertRaisesRegex(LabError, folder):
                machines.load(folder)


class Program(unittest.TestCase):
    def asking(self, path):
        return unittest.mock.patch.dict(os.environ, {"NEARSIDE_BIN": str(path)})

    def test_a_program_that_cannot_run_is_named(self):
        with (
            self.asking("/nosuch"),
            self.assertRaisesRegex(LabError, "^cannot run /nosuch: .*cargo"),
        ):
            parse(RING, "other")

    def test_a_program_without_costs_is_named_as_another_version(self):
        with tempfile.TemporaryDirectory() as folder:
            for answer in ("{}", "[]", "", '{"machine_file": null}'):
                program = Path(folder) / "nearside"
                program.write_text(f"#!/bin/sh\necho '{answer}'\n")
                program.chmod(0o755)
                with (
                    self.asking(program),
                    self.assertRaisesRegex(LabError, "another version; build"),
                ):
                    parse(RING)

    def test_the_newest_build_is_asked_unless_a_source_is_newer(self):
        with tempfile.TemporaryDirectory() as folder:
            target, source = Path(folder), Path(folder) / "source.rs"
            source.touch()
            self.assertIsNone(nearside.built(target, [source]))
            for age, profile in ((2, "release"), (1, "debug")):
                build = target / profile / "nearside"
                build.parent.mkdir()
                build.touch()
                os.utime(build, ns=(0, 10 - age))
            os.utime(source, ns=(0, 5))
            self.assertEqual(nearside.built(target, [source]), target / "debug/nearside")
            os.utime(source, ns=(0, 10))
            self.assertIsNone(nearside.built(target, [source]))


class Emulating(unittest.TestCase):
    def refuses(self, text, available_mib, *words):
        with self.assertRaises(LabError) as caught:
            parse(text, "big").refuse_beyond(available_mib)
        for word in ("/big.toml: ", *words):
            self.assertIn(word, str(caught.exception))

    def test_a_machine_within_all_limits_is_not_refused(self):
        parse(RING).refuse_beyond(available_mib=1024)

    def test_more_cpus_than_can_be_emulated_are_refused(self):
        text = RING.replace("cpus = 2", "cpus = 64")
        self.refuses(text, 65536, "node 1: cpus: 67 CPUs", "at most 64")

    def test_more_memory_than_the_host_has_is_refused(self):
        self.refuses(RING, 1023, "node 3: memory_mib: 1024 MiB", "1023 MiB")

    def test_more_memory_than_the_plugin_numbers_is_refused(self):
        text = RING.replace("= 256\n[", "= 131072\n[")
        self.refuses(text, 1 << 20, "node 2: memory_mib: ", "at most 260096 MiB")

    def test_more_links_on_a_route_than_the_plugin_holds_are_refused(self):
        chain = RING.split("[[link]]")[0]
        points = [0, *(f'"s{i}"' for i in range(8)), 1, 2, 3]
        for one, other in zip(points, points[1:]):
            chain += f"[[link]]\nbetween = [{one}, {other}]\nlatency_ns = 1\n"
        self.refuses(chain, 65536, "link.between: 11 links on one route", "at most 8")

    def test_more_nodes_than_the_plugin_holds_are_refused(self):
        nodes = 17
        matrix = [[10 if i == j else 20 for j in range(nodes)] for i in range(nodes)]
        text = f"insn_ps = 400\ndistance = {matrix}\nlatency_ns = {matrix}\n"
        text += "[cache]\nkib = 256\nways = 4\n" + nodes * "[[node]]\ncpus = 1\nmemory_mib = 128\n"
        self.refuses(text, 65536, "node: 17 nodes", "at most 16")


class Derived(unittest.TestCase):
    def test_a_flat_machine_differs_in_its_latencies_alone(self):
        machine = machines.load("pairs")
        flat = [[90] * 4] * 4
        derived = parse(machines.text_of(replace(machine, latency_ns=flat)))
        self.assertEqual(derived.latency_ns, flat)
        for same in (
            "insn_ps",
            "distance",
            "cache",
            "prefetch",
            "last_level",
            "last_level_ns",
            "remote_cache",
            "remote_cache_ns",
            "nodes",
        ):
            self.assertEqual(getattr(derived, same), getattr(machine, same), same)

    def test_a_machine_survives_writing_and_reading(self):
        for name in (
            "pairs",
            "one-node",
            "x460-small",
            "opteron-8-asymmetric-small",
            "wildfire-gs320-small",
            "numa-q-small",
        ):
            machine = machines.load(name)
            again = parse(machines.text_of(machine))
            self.assertEqual(replace(again, name=machine.name, path=machine.path), machine, name)

    def test_a_description_may_have_any_characters(self):
        description = 'q"uoted \\ \n \x00\x7f\x85\u2028 Köln \U0001f600'
        machine = replace(machines.load("pairs"), description=description)
        self.assertEqual(parse(machines.text_of(machine)).description, description)

    def test_no_ratio_fits_a_node_nearer_than_local_memory(self):
        own_ns = RING.replace("[90, 91, 92, 93]", "[90, 191, 92, 93]")
        with self.assertRaisesRegex(LabError, "node 0 is nearer to node 1 than its own"):
            machines.at_ratio(parse(own_ns), 2.0)

    def test_a_ratio_scales_all_extra_latencies_in_proportion(self):
        for name in ("pairs", "x460-small", "opteron-8-asymmetric-small"):
            machine = machines.load(name)
            derived = parse(machines.text_of(machines.at_ratio(machine, 2.0)))
            own_ns = [row[node] for node, row in enumerate(machine.latency_ns)]
            more = [[ns - own_ns[i] for ns in row] for i, row in enumerate(machine.latency_ns)]
            ratios = [ns / own_ns[i] for i, row in enumerate(derived.latency_ns) for ns in row]
            self.assertAlmostEqual(max(ratios), 2.0, places=3, msg=name)
            by = [
                (ns - own_ns[i]) / more[i][j]
                for i, row in enumerate(derived.latency_ns)
                for j, ns in enumerate(row)
                if more[i][j]
            ]
            self.assertAlmostEqual(min(by), max(by), places=3, msg=name)
        with self.assertRaises(LabError):
            machines.at_ratio(machines.load("one-node"), 2.0)


if __name__ == "__main__":
    unittest.main()
