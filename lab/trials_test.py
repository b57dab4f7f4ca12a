"""Tests of trials: pins, the facts that a result depends on, runs, and kept results. Run by
`make unit`."""

import contextlib
import io
import json
import shutil
import tempfile
import unittest
import unittest.mock
from dataclasses import replace
from pathlib import Path

import trials
import identity
import machines
import modelled
import nearside
from trials import Trial, run_all
from common import LAB, LabError
from contenders import naive_pins, oracle_pins
from fakes import FakeRunner, result
from tables import rows_of


def domains(*work):
    return [{"work": each} for each in work]


class Pins(unittest.TestCase):
    def test_naive_takes_nodes_in_turn(self):
        self.assertEqual(naive_pins(domains(*range(6)), machines.load("pairs")), [0, 1, 2, 3, 0, 1])

    def test_oracle_evens_out_work(self):
        work = (60, 1200, 2400, 1200, 1200, 60, 1200, 2400)
        pins = oracle_pins(domains(*work), machines.load("pairs"))
        loads = [sum(w for w, pin in zip(work, pins) if pin == node) for node in range(4)]
        self.assertEqual(sorted(loads), [2400, 2400, 2460, 2460])

    def test_oracle_is_naive_where_all_are_alike(self):
        machine = machines.load("pairs")
        self.assertEqual(
            oracle_pins(domains(*[1] * 16), machine), naive_pins(domains(*[1] * 16), machine)
        )


FAKE_RUN = """#!/bin/sh
while [ "$1" != --counters ]; do shift; done
cp marks "$2"
[ ! -e edit ] || sh edit
echo '{"total_ms": 5, "domains": [{"time_ms": 5}]}'
"""


class FakeLab:
    """A copy of the lab's files, in whose guests nothing runs."""

    def __init__(self, folder):
        self.folder, self.lab = folder, folder / "lab"
        for path in identity.read_by_guests():
            self.write(f"lab/{path.relative_to(LAB)}", path.read_text())
        self.write("lab/run", FAKE_RUN)
        self.write(
            "qemu",
            f'#!/bin/sh\n[ "$1" = -L ] && echo {folder} || '
            'echo "QEMU emulator version 10.0 (Debian)"\n',
        )
        self.write("program", '#!/bin/sh\necho \'[{"work": 1}, {"work": 1}]\'\n')
        for name in ("scheduler/src/bpf/main.bpf.c", "credit/src/credit.h"):
            self.write(f"crates/{name}", name)
        self.write("m.toml", (LAB / "machines/pairs.toml").read_text())
        ids = (trials.MARK_BEGIN, trials.MARK_END)
        marks = (
            {"what": "mark", "id": number, **mark}
            for number, mark in zip(ids, result(5, (1, 1))["marks"], strict=True)
        )
        self.write("marks", "".join(f"{json.dumps(mark)}\n" for mark in marks))
        for name in ("busybox", "libc", "7.1-amd64/vmlinuz", *identity.FIRMWARE):
            self.write(name, name)
        (folder / "results").mkdir()

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def append(self, name, text):
        self.write(name, (self.folder / name).read_text() + text)

    def runner(self):
        fakes = (
            (trials, "LAB", self.lab),
            (trials, "build", lambda *names, **_: dict.fromkeys(names, self.folder / "program")),
            (identity, "LAB", self.lab),
            (identity, "executable", lambda name: self.folder / Path(name).name),
            (identity, "libraries", lambda *_: [self.folder / "libc"]),
            (nearside, "use", lambda _: None),
            (modelled, "find_qemu", lambda: ([str(self.folder / "qemu")], None)),
        )
        with contextlib.ExitStack() as stack:
            for module, name, fake in fakes:
                stack.enter_context(unittest.mock.patch.object(module, name, fake))
            self.stack = stack.pop_all()
        return trials.Runner(self.folder / "results", self.folder / "7.1-amd64/vmlinuz")


class Identity(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.lab = FakeLab(Path(folder.name))
        self.trial = Trial("warehouse", str(self.lab.folder / "m.toml"), 2, "nearside", 1)

    def runner(self):
        runner = self.lab.runner()
        self.addCleanup(self.lab.stack.close)
        return runner

    def changes(self, name, text="# more\n"):
        """Whether the result is another one after that is added to a file."""
        before = self.runner().identity(self.trial)
        self.lab.append(name, text)
        return self.runner().identity(self.trial) != before

    def test_another_file_of_the_guest_makes_another_result(self):
        files = ["qemu", *identity.FIRMWARE, "busybox", "libc", "program", "7.1-amd64/vmlinuz"]
        files += [
            f"lab/{name}"
            for name in (
                "numatime/Makefile",
                "numatime/memory.c",
                "initramfs.py",
                "modelled.py",
                "modelled-init",
            )
        ]
        for name in files:
            self.assertTrue(self.changes(name), name)

    def test_files_that_only_describe_the_guest_make_no_other_result(self):
        for name in ("m.toml", "lab/run", "lab/machines.py", "lab/common.py"):
            self.assertFalse(self.changes(name), name)

    def test_a_machine_counts_by_its_arguments(self):
        before = self.runner().identity(self.trial)
        for old, new in (("memory_mib = 256", "memory_mib = 512"), ("30", "31"), ("90", "91")):
            text = (LAB / "machines/pairs.toml").read_text()
            self.assertIn(old, text)
            self.lab.write("m.toml", text.replace(old, new))
            self.assertNotEqual(self.runner().identity(self.trial), before, new)

    def test_a_result_names_its_date_and_its_versions(self):
        runner = self.runner()
        kept = runner.run(self.trial)
        self.assertEqual(runner.found(self.trial), json.loads(json.dumps(kept)))
        self.assertEqual(
            (kept["kernel"], kept["qemu"], kept["commit"]), ("7.1", "10.0 (Debian)", "unknown")
        )
        self.assertRegex(kept["ended"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$")

    def test_a_result_of_nearside_names_the_sources_of_its_scheduler(self):
        runner = self.runner()
        kept = runner.run(self.trial)
        self.assertEqual(kept["scheduler_sources"], identity.scheduler())
        self.assertNotIn("scheduler_sources", runner.run(replace(self.trial, contender="stock")))
        for text, is_other in (("\n\t/* more */ // words\n", False), ("more", True)):
            for name in ("scheduler/src/bpf/main.bpf.c", "credit/src/credit.h"):
                before = identity.scheduler()
                self.lab.append(f"crates/{name}", text)
                self.assertEqual(identity.scheduler() != before, is_other, (name, text))
        later = runner.run(replace(self.trial, seed=2))
        self.assertEqual(later["scheduler_sources"], kept["scheduler_sources"])

    def test_another_build_is_the_same_programs_at_another_place(self):
        runner, folder = self.runner(), self.lab.folder / "results/bin"
        second = replace(self.trial, build=2)
        self.assertEqual(str(second), f"{self.trial}, build 2")
        self.assertNotIn("build", str(self.trial))
        for trial, place in ((self.trial, folder), (second, folder / "build-2")):
            command = runner.command(trial)
            self.assertIn(str(place / "workloads"), command)
            self.assertIn(f"{place / 'nearside'}=/bin/nearside", command)
            for name in ("workloads", "nearside"):
                self.assertIn(place / name, runner.depends_on(trial))
                self.assertEqual((place / name).read_bytes(), (folder / name).read_bytes())
        self.assertNotEqual(runner.file(second), runner.file(self.trial))
        self.assertEqual(runner.failed(second).name[-24:], ".seed-1.build-2.counters")

    def test_an_edit_while_a_guest_runs_ends_the_set_and_drops_its_result(self):
        for edited in ("lab/modelled.py", "lab/run", "libc", "m.toml", "7.1-amd64/vmlinuz"):
            runner = self.runner()
            shutil.copy(self.lab.folder / "m.toml", self.lab.folder / "before.toml")
            self.lab.write(
                "edit", f"sed -i 's/memory_mib = 256/memory_mib = 512/; $ a # more' {edited}\n"
            )
            with self.assertRaisesRegex(LabError, "Start again", msg=edited):
                runner.run(self.trial)
            (self.lab.folder / "edit").unlink()
            shutil.copy(self.lab.folder / "before.toml", self.lab.folder / "m.toml")
            self.assertEqual(list((self.lab.folder / "results/trials").iterdir()), [], edited)

    def test_a_guest_whose_marks_are_cut_off_fails_alone_and_its_counters_are_kept(self):
        runner, whole = self.runner(), (self.lab.folder / "marks").read_text()
        kept = self.lab.folder / "results/failed/warehouse.m.2-domains.nearside.seed-1.counters"
        ends = {
            "no marks": "",
            "no end": whole.splitlines()[0],
            "half a line": whole[:-50],
            "no CPUs": '{"what": "mark", "id": 1}',
        }
        for what, marks in ends.items():
            self.lab.write("marks", marks)
            with contextlib.redirect_stdout(io.StringIO()) as said:
                self.assertIsNone(runner.run(self.trial), what)
            self.assertIn(f"{self.trial}: failed: ", said.getvalue())
            self.assertIn(f"its counters so far are in {kept}", said.getvalue())
            self.assertEqual(kept.read_text(), marks)
            self.assertIsNone(runner.found(self.trial), what)
        self.lab.write("marks", whole)
        self.assertIsNotNone(runner.run(self.trial))
        self.assertFalse(kept.exists())

    def test_a_guest_that_was_ended_keeps_its_counters(self):
        runner = self.runner()
        self.lab.write("edit", "kill $PPID\n")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertIsNone(runner.run(self.trial))
        self.assertIn("failed: exit code -15; its counters so far are in ", said.getvalue())
        self.assertEqual(len(list((self.lab.folder / "results/failed").iterdir())), 1)

    def test_a_result_of_which_nothing_can_be_shown_is_none(self):
        runner = self.runner()
        for text in ("", "{}", '{"total_ms": 5', '{"total_ms": 5, "domains": [], "marks": []}'):
            runner.file(self.trial).write_text(text)
            self.assertIsNone(runner.found(self.trial), text)


class Sources(unittest.TestCase):
    def test_comments_and_the_arrangement_of_lines_do_not_count(self):
        bare = identity.without_comments
        self.assertEqual(
            bare("int x; /* it's\n * x */\n\tint y; // \"\n"), bare("int x;\n\n int  y;\n")
        )
        self.assertEqual(bare('s("/* x */ // \\"", \'"\'); // x'), 's("/* x */ // \\"", \'"\');')
        self.assertNotEqual(bare("int x;"), bare("intx;"))


class Running(unittest.TestCase):
    def trials(self, *contenders):
        return [Trial("w", "m", 2, contender, 1) for contender in contenders]

    def run_all(self, runner, trials, jobs):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            return run_all(runner, trials, jobs), said.getvalue()

    def test_equal_trials_run_once_and_known_ones_not_at_all(self):
        runner, trials = (
            FakeRunner(found=["stock"]),
            self.trials("stock", "pin-naive", "pin-oracle"),
        )
        results, said = self.run_all(runner, trials, 2)
        self.assertEqual(runner.ran, ["pin-naive"])
        self.assertEqual([results[trial]["total_ms"] for trial in trials], [100, 100, 100])
        self.assertIn("3 trials, 1 of them found, 1 to run", said)

    def test_a_guest_that_failed_leaves_the_others(self):
        trials = self.trials("nearside", "stock")
        results, _ = self.run_all(FakeRunner(), trials, 2)
        self.assertIsNone(results[trials[0]])
        self.assertEqual(list(rows_of(results)["m", "w", 2]), ["stock"])

    def test_no_more_guests_at_a_time_than_memory_allows(self):
        wanted = ["pairs", "x460-small"]
        gib = 1 << 30
        for cpus, available, expected in ((4, 100 * gib, 4), (4, 12 * gib, 2), (4, 3 * gib, 1)):
            has_memory = unittest.mock.patch.object(
                trials, "available_bytes", return_value=available
            )
            has_cpus = unittest.mock.patch.object(trials.os, "cpu_count", return_value=cpus)
            with has_memory, has_cpus:
                self.assertEqual(trials.jobs_for(wanted), expected)
        self.assertGreater(trials.available_bytes(), 0)


if __name__ == "__main__":
    unittest.main()
