"""Tests of lab/migrate. Run by `make unit`."""

import unittest

import migration_guest
from fakes import load_program

migrate = load_program("migrate")


def move(number, name, **changes):
    entry = {"round": number, "vm": name, "daemon": "runs", "to": "b", "ok": True, "said": ""}
    entry |= {"s": 2.0 * number, "shares": [1.0, 1.0], "starts": 0, "runs_here": False}
    return entry | changes


class Failures(unittest.TestCase):
    def test_a_share_below_the_required_one_a_restart_and_a_refusal_are_failures(self):
        good = [move(1, "two"), {"round": 1, "hook": []}, move(1, "one")]
        self.assertEqual(migrate.failures(good, 2), [])
        self.assertEqual(migrate.failures(good[:1], 2), ["1 migrations, expected 2"])
        for changes, told in (
            ({"shares": [1.0, 0.94]}, "round 1, one: local shares [1.0, 0.94]"),
            ({"starts": 1}, "round 1, one: it has started again, or runs on both sides"),
            ({"runs_here": True}, "round 1, one: it has started again, or runs on both sides"),
            ({"ok": False, "said": "no room"}, "round 1, one: no room"),
        ):
            found = migrate.failures([move(1, "two"), move(1, "one", **changes)], 2)
            self.assertEqual(found, [told])


class Table(unittest.TestCase):
    def test_a_machine_that_runs_nowhere_is_lost(self):
        refused = {"ok": False, "daemon": "killed"}
        entries = [
            move(1, "two", shares=[0.97]),
            move(2, "two"),
            move(3, "two", **refused),
            move(4, "two", runs_here=True, **refused),
        ]
        self.assertEqual(
            migrate.table(entries)[2:],
            [
                "| runs | 2 | 2 | 97.0% | 0 | 4 s, 4 s |",
                "| killed | 2 | 0 | 0.0% | 1 | 8 s, 8 s |",
            ],
        )


class LocalShare(unittest.TestCase):
    def test_each_node_that_a_vcpu_may_use_counts_alike(self):
        share = migration_guest.local_share
        self.assertEqual(share({"bytes": {"0": 30, "1": 10}, "vcpus": ["0"]}), 0.75)
        self.assertEqual(share({"bytes": {"0": 30, "1": 10}, "vcpus": ["0", "1"]}), 0.5)
        self.assertEqual(share({"bytes": {"0": 4}, "vcpus": ["1"]}), 0.0)
        self.assertEqual(share({"bytes": {}, "vcpus": ["1"]}), 0.0)


class Network(unittest.TestCase):
    def test_each_side_sends_to_the_port_of_the_other(self):
        self.assertEqual(
            migrate.network("a", 1, 2),
            "-netdev dgram,id=m,local.type=inet,local.host=127.0.0.1,local.port=1,"
            "remote.type=inet,remote.host=127.0.0.1,remote.port=2 "
            "-device virtio-net-pci,netdev=m,mac=52:54:00:00:00:0a",
        )


if __name__ == "__main__":
    unittest.main()
