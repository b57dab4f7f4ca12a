"""Tests of guests under Xen: their configuration, and the reader of their placement. Run by
`make unit`."""

import unittest

import xen
from common import LabError

DOMAIN = {"vcpus": 2, "memory_mib": 36, "delay_ms": 0, "program": ["warehouse", "--seed", "0"]}

# As Xen 4.20 says it, of two guests on two nodes.
SAID = """\
begin 1000000000
end 1900000000
done 0 1500000000
done 1 1800000000
Name                                ID  VCPU   CPU State   Time(s) Affinity (Hard / Soft)
Domain-0                             0     0    7   r--      41.0  all / all
d0                                   1     0    6   -b-      23.3  all / 2-3
d0                                   1     1    5   -b-      16.6  all / 2-3
d1                                   2     0    0   -b-      25.6  all / all
d1                                   2     1    -   --p       9.6  all / all
(XEN) 'u' pressed -> dumping numa info (now = 99949753546)
(XEN) NODE0 start->0 size->262144 free->244667
(XEN) NODE1 start->262144 size->262144 free->231182
(XEN) CPU0...1 -> NODE0
(XEN) CPU2...3 -> NODE1
(XEN) Memory location of each domain:
(XEN) d0 (total: 131072):
(XEN)     Node 0: 16482
(XEN)     Node 1: 114590
(XEN) d1 (total: 26624):
(XEN)     Node 0: 0
(XEN)     Node 1: 26624
(XEN) d2 (total: 26624):
(XEN)     Node 0: 20000
(XEN)     Node 1: 6624
"""


class Guests(unittest.TestCase):
    def test_a_guest_has_the_domains_size_and_its_kernels_and_nothing_says_where(self):
        text = xen.configuration(3, DOMAIN)
        self.assertIn('name = "d3"\n', text)
        self.assertIn("vcpus = 2\n", text)
        self.assertIn(f"memory = {36 + xen.GUEST_MIB}\n", text)
        self.assertIn('domain=3"\n', text)
        for word in ("cpus =", "cpus_soft", "node"):
            self.assertNotIn(f"\n{word}", text)

    def test_the_programs_words_reach_the_shell_as_they_are(self):
        text = xen.settings(
            "/bin/workloads",
            {
                **DOMAIN,
                "delay_ms": 300,
                "program": ["command", "--", "/bin/sh", "-c", "echo 'a  b'"],
            },
        )
        self.assertIn("delay_ms=300\n", text)
        self.assertIn(
            """/bin/workloads domain command -- /bin/sh -c 'echo '"'"'a  b'"'"''; }""", text
        )

    def test_only_a_workload_is_played(self):
        for command in (["busybox", "true"], ["workloads", "describe", "lock"], ["workloads"]):
            with self.assertRaises(LabError):
                xen.domains_of(command)


class Results(unittest.TestCase):
    def test_where_guests_lie_and_where_they_shall_run(self):
        self.assertEqual(xen.bytes_by_node(SAID)[1], {"0": 0, "1": 26624 << 12})
        self.assertEqual(xen.soft_affinity(SAID), {"d0": "2-3", "d1": "all"})

    def test_a_result_has_the_shape_of_the_workloads_output(self):
        late = {**DOMAIN, "delay_ms": 300}
        result = xen.result_of(SAID, "warehouse", [DOMAIN, late])
        self.assertEqual(result["total_ms"], 800)
        self.assertEqual([domain["time_ms"] for domain in result["domains"]], [500, 500])
        self.assertEqual(result["domains"][1]["memory_bytes"], {"0": 20000 << 12, "1": 6624 << 12})
        self.assertEqual(
            result["placement"],
            [{"nodes": [1], "soft_affinity": "2-3"}, {"nodes": [0, 1], "soft_affinity": "all"}],
        )

    def test_missing_lines_make_no_result(self):
        for said in (
            SAID.replace("done 1", "undone"),
            SAID.replace("begin", "end"),
            SAID.replace("(XEN) d2", "(XEN) d7"),
            "",
        ):
            with self.assertRaises(LabError):
                xen.result_of(said, "warehouse", [DOMAIN, DOMAIN])


if __name__ == "__main__":
    unittest.main()
