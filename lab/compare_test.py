"""Tests of lab/compare: who gets which pins, what is run, and what the table says. Run by `make unit`."""

import contextlib
import importlib.util
import io
import json
import re
import shutil
import sys
import tempfile
import threading
import unittest
import unittest.mock
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import SimpleNamespace

import machines
import modelled
import required
from common import LAB, LabError


def load_compare():
    loader = SourceFileLoader("compare", str(LAB / "compare"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("compare", loader))
    sys.modules["compare"] = module  # dataclasses look there
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


compare = load_compare()


def domains(*work):
    return [{"work": each} for each in work]


def result(total_ms, busy_ms=(0, 0), fetched=((0, 0), (0, 0))):
    """Of a guest of two CPUs on two nodes, both of which were halted long before the first mark."""

    def mark(busy, lines, now_ns):
        zeros = [0, 0]
        vcpus = [
            {"node": cpu, "now_ns": now_ns, "idle_ns": now_ns - busy[cpu] * 1e6, "stall_ns": busy[cpu] * 5e5, "fetched": lines[cpu],
             "code_fetched": zeros, "handed_over": zeros}
            for cpu in (0, 1)
        ]  # fmt: skip
        return {"machine_ns": 1e9 + total_ms * 1e6 if any(busy) else 1e9, "vcpus": vcpus}

    begin, end = mark((0, 0), ((0, 0), (0, 0)), 2e8), mark(busy_ms, fetched, 1e9 + total_ms * 1e6)
    made = {"ended": "2026-11-23T20:00:00+00:00", "commit": "1234567", "kernel": "7.1", "qemu": "10.0", "host_s": 1, "command": "# run"}
    return {**made, "total_ms": total_ms, "domains": [{"time_ms": total_ms}, {"time_ms": total_ms / 2}], "marks": [begin, end]}


class Pins(unittest.TestCase):
    def test_naive_takes_nodes_in_turn(self):
        self.assertEqual(compare.naive_pins(domains(*range(6)), machines.load("pairs")), [0, 1, 2, 3, 0, 1])

    def test_oracle_evens_out_work(self):
        work = (60, 1200, 2400, 1200, 1200, 60, 1200, 2400)
        pins = compare.oracle_pins(domains(*work), machines.load("pairs"))
        loads = [sum(w for w, pin in zip(work, pins) if pin == node) for node in range(4)]
        self.assertEqual(sorted(loads), [2400, 2400, 2460, 2460])

    def test_oracle_is_naive_where_all_are_alike(self):
        machine = machines.load("pairs")
        self.assertEqual(compare.oracle_pins(domains(*[1] * 16), machine), compare.naive_pins(domains(*[1] * 16), machine))


class Bounds(unittest.TestCase):
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

    def test_a_bound_is_cpu_time_shared_out(self):
        cell = compare.Cell("w", "m", 2, "local", 1)
        self.assertAlmostEqual(compare.total_ms(cell, result(100, busy_ms=(80, 40))), 60)


class Counters(unittest.TestCase):
    def test_a_cpu_that_was_halted_before_is_not_idle_twice(self):
        seen = result(100, busy_ms=(80, 40))
        self.assertAlmostEqual(compare.busy_ns(seen), 120e6)
        self.assertAlmostEqual(compare.halted_share(seen), 0.4)
        self.assertAlmostEqual(compare.waiting_share(seen), 0.5)

    def test_local_is_what_comes_from_the_own_node(self):
        self.assertAlmostEqual(compare.local_share(result(100, (1, 1), ((30, 10), (5, 55)))), 0.85)


class FakeRunner:
    """Results by what a contender does; `pin-oracle` does what `pin-naive` does."""

    def __init__(self, found=()):
        known = {**result(100, (1, 1)), "command": "# known"}
        self.known, self.ran, self.lock = dict.fromkeys(found, known), [], threading.Lock()

    def file(self, cell):
        return cell.contender.replace("oracle", "naive")

    def found(self, cell):
        return self.known.get(self.file(cell))

    def run(self, cell):
        with self.lock:
            self.ran.append(self.file(cell))
        made = result({"stock": 150, "pin-naive": 100}[self.file(cell)], (1, 1)) if self.file(cell) != "nearside" else None
        return made and {**made, "command": f"# {cell.contender}"}


FAKE_RUN = """#!/bin/sh
while [ "$1" != --counters ]; do shift; done
cp marks "$2"
[ ! -e edit ] || sh edit
echo '{"total_ms": 5, "domains": [{"time_ms": 5}]}'
"""


class FakeLab:
    """A copy of what the lab is made of, in whose guests nothing runs."""

    def __init__(self, folder):
        self.folder, self.lab = folder, folder / "lab"
        for path in compare.read_meanwhile():
            self.write(f"lab/{path.relative_to(LAB)}", path.read_text())
        self.write("lab/run", FAKE_RUN)
        self.write("qemu", f'#!/bin/sh\n[ "$1" = -L ] && echo {folder} || echo "QEMU emulator version 10.0 (Debian)"\n')
        self.write("program", '#!/bin/sh\necho \'[{"work": 1}, {"work": 1}]\'\n')
        self.write("m.toml", (LAB / "machines/pairs.toml").read_text())
        ids = (compare.MARK_BEGIN, compare.MARK_END)
        marks = ({"what": "mark", "id": number, **mark} for number, mark in zip(ids, result(5, (1, 1))["marks"], strict=True))
        self.write("marks", "".join(f"{json.dumps(mark)}\n" for mark in marks))
        for name in ("busybox", "libc", "7.1-amd64/vmlinuz", *compare.FIRMWARE):
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
        compare.lab_run()  # the true one
        fakes = {
            "LAB": self.lab,
            "build": lambda *_: self.folder / "program",
            "executable": lambda name: self.folder / Path(name).name,
            "libraries": lambda *_: [self.folder / "libc"],
        }
        with contextlib.ExitStack() as stack:
            for name, fake in fakes.items():
                stack.enter_context(unittest.mock.patch.object(compare, name, fake))
            stack.enter_context(unittest.mock.patch.object(modelled, "find_qemu", lambda: ([str(self.folder / "qemu")], None)))
            self.stack = stack.pop_all()
        return compare.Runner(self.folder / "results", self.folder / "7.1-amd64/vmlinuz")


class Identity(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.lab = FakeLab(Path(folder.name))
        self.cell = compare.Cell("warehouse", str(self.lab.folder / "m.toml"), 2, "nearside", 1)

    def runner(self):
        runner = self.lab.runner()
        self.addCleanup(self.lab.stack.close)
        return runner

    def changes(self, name, text="# more\n"):
        """Whether the result is another one after that is added to a file."""
        before = self.runner().identity(self.cell)
        self.lab.append(name, text)
        return self.runner().identity(self.cell) != before

    def test_whatever_the_guest_is_made_of_makes_another_result(self):
        files = ["qemu", *compare.FIRMWARE, "busybox", "libc", "program", "7.1-amd64/vmlinuz"]
        files += [f"lab/{name}" for name in ("numatime/Makefile", "numatime/memory.c", "initramfs.py", "modelled.py", "modelled-init")]
        for name in files:
            self.assertTrue(self.changes(name), name)

    def test_whoever_only_tells_of_it_does_not(self):
        for name in ("m.toml", "lab/run", "lab/machines.py", "lab/common.py"):
            self.assertFalse(self.changes(name), name)

    def test_a_machine_counts_by_what_is_made_of_it(self):
        before = self.runner().identity(self.cell)
        for old, new in (("memory_mib = 256", "memory_mib = 512"), ("30", "31"), ("90", "91")):
            text = (LAB / "machines/pairs.toml").read_text()
            self.assertIn(old, text)
            self.lab.write("m.toml", text.replace(old, new))
            self.assertNotEqual(self.runner().identity(self.cell), before, new)

    def test_a_result_says_when_and_of_what_it_was_made(self):
        runner = self.runner()
        kept = runner.run(self.cell)
        self.assertEqual(runner.found(self.cell), json.loads(json.dumps(kept)))
        self.assertEqual((kept["kernel"], kept["qemu"], kept["commit"]), ("7.1", "10.0 (Debian)", "unknown"))
        self.assertRegex(kept["ended"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$")

    def test_what_is_edited_while_a_guest_runs_ends_the_set_and_its_result_is_not_kept(self):
        for edited in ("lab/modelled.py", "lab/run", "libc", "m.toml", "7.1-amd64/vmlinuz"):
            runner = self.runner()
            shutil.copy(self.lab.folder / "m.toml", self.lab.folder / "before.toml")
            self.lab.write("edit", f"sed -i 's/memory_mib = 256/memory_mib = 512/; $ a # more' {edited}\n")
            with self.assertRaisesRegex(LabError, "Start again", msg=edited):
                runner.run(self.cell)
            (self.lab.folder / "edit").unlink()
            shutil.copy(self.lab.folder / "before.toml", self.lab.folder / "m.toml")
            self.assertEqual(list((self.lab.folder / "results/cells").iterdir()), [], edited)


    def test_a_guest_whose_marks_are_cut_off_fails_alone_and_its_counters_are_kept(self):
        runner, whole = self.runner(), (self.lab.folder / "marks").read_text()
        kept = self.lab.folder / "results/failed/warehouse.m.2-domains.nearside.seed-1.counters"
        ends = {"no marks": "", "no end": whole.splitlines()[0], "half a line": whole[:-50], "no CPUs": '{"what": "mark", "id": 1}'}
        for what, marks in ends.items():
            self.lab.write("marks", marks)
            with contextlib.redirect_stdout(io.StringIO()) as said:
                self.assertIsNone(runner.run(self.cell), what)
            self.assertIn(f"{self.cell}: failed: ", said.getvalue())
            self.assertIn(f"its counters so far are in {kept}", said.getvalue())
            self.assertEqual(kept.read_text(), marks)
            self.assertIsNone(runner.found(self.cell), what)
        self.lab.write("marks", whole)
        self.assertIsNotNone(runner.run(self.cell))
        self.assertFalse(kept.exists())

    def test_a_guest_that_was_ended_keeps_its_counters(self):
        runner = self.runner()
        self.lab.write("edit", "kill $PPID\n")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertIsNone(runner.run(self.cell))
        self.assertIn("failed: exit code -15; its counters so far are in ", said.getvalue())
        self.assertEqual(len(list((self.lab.folder / "results/failed").iterdir())), 1)

    def test_a_result_of_which_nothing_can_be_shown_is_none(self):
        runner = self.runner()
        for text in ("", "{}", '{"total_ms": 5', '{"total_ms": 5, "domains": [], "marks": []}'):
            runner.file(self.cell).write_text(text)
            self.assertIsNone(runner.found(self.cell), text)


class Running(unittest.TestCase):
    def cells(self, *contenders):
        return [compare.Cell("w", "m", 2, contender, 1) for contender in contenders]

    def run_all(self, runner, cells, jobs):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            return compare.run_all(runner, cells, jobs), said.getvalue()

    def test_what_is_the_same_runs_once_and_what_is_found_not_at_all(self):
        runner, cells = FakeRunner(found=["stock"]), self.cells("stock", "pin-naive", "pin-oracle")
        results, said = self.run_all(runner, cells, 2)
        self.assertEqual(runner.ran, ["pin-naive"])
        self.assertEqual([results[cell]["total_ms"] for cell in cells], [100, 100, 100])
        self.assertIn("3 cells, 1 of them found, 1 to run", said)

    def test_a_guest_that_failed_leaves_the_others(self):
        cells = self.cells("nearside", "stock")
        results, _ = self.run_all(FakeRunner(), cells, 2)
        self.assertIsNone(results[cells[0]])
        self.assertEqual(list(compare.rows_of(results)["m", "w", 2]), ["stock"])


class Table(unittest.TestCase):
    def test_ratios_and_plot(self):
        cells = [compare.Cell("w", "m", 2, contender, seed) for contender in ("stock", "local") for seed in (1, 2, 3)]
        times = (100, 150, 200, 0, 0, 0)
        results = {cell: result(time, (150, 150), ((90, 10), (0, 0))) for cell, time in zip(cells, times)}
        rows = compare.rows_of(results)
        lines = compare.table(results).splitlines()
        stock = next(line for line in lines if line.startswith("| stock"))
        self.assertTrue(stock.split(" | ")[1:5] == ["150", "100 .. 200", "1.00", "1.00"], stock)
        self.assertIn("90.0 %", stock)
        self.assertEqual({line.count("|") for line in lines if line.startswith("|")}, {len(compare.HEADINGS) + len(compare.FIGURES) + 1})
        with tempfile.TemporaryDirectory() as folder:
            compare.write_plots(Path(folder), rows)
            svg = (Path(folder) / "w.m.svg").read_text()
        self.assertTrue(svg.startswith("<svg") and "stroke-dasharray" in svg)

    def test_what_has_no_result_is_told(self):
        wanted = [compare.Cell("w", "m", domains, c, seed) for domains in (2, 4) for c in ("stock", "nearside") for seed in (1, 2)]
        results = {cell: result(100, (1, 1)) if cell.domains == 2 and cell.seed == 1 else None for cell in wanted}
        results[wanted[0]] = None
        text = compare.table(results)
        self.assertIn("Without a result: stock, nearside (seed 2).", text)
        self.assertIn("### w, 4 domains on m\n\nWithout a result: stock, nearside.", text)

    def test_several_ratios_are_a_curve(self):
        ratios = {"m": 2.6, "m.ratio-1.5": 1.4999, "m.ratio-2.0": 2.0}
        cells = {compare.Cell("w", f"{name}.toml", 16, c, 1): 100 for name in ratios for c in ("stock", "nearside", "local")}
        cells |= {compare.Cell("w", "m.toml", 4, "stock", 1): 100, compare.Cell("w", "m.ratio-2.0.toml", 8, "nearside", 1): 100}
        rows = compare.rows_of({cell: result(time, (50, 50)) for cell, time in cells.items()})
        with tempfile.TemporaryDirectory() as folder:
            files = compare.write_ratio_plots(Path(folder), rows, ratios)
            self.assertEqual(files, {("w", "m", 16): Path(folder) / "w.m.16-domains.ratios.svg"})
            svg = files["w", "m", 16].read_text()
        for text in (">1.5<", ">2.0<", ">2.6<", ">nearside<", ">local<"):
            self.assertIn(text, svg)
        self.assertEqual(svg.count("<polyline"), 3)

    def test_where_results_come_from_is_told_of_those_that_are_shown(self):
        when = ((5, "b"), (3, "a"), (4, "b"))
        made = [{**result(1), "ended": f"2026-11-2{day}T01:00:00+00:00", "commit": commit} for day, commit in when]
        results = dict(enumerate([*made, None]))
        told = "2026-11-23 to 2026-11-25, commits a, b, Linux 7.1, QEMU 10.0, control intervals 20 times shorter than by default"
        self.assertEqual(compare.provenance(results), told)
        self.assertIn("2026-11-25, commit b,", compare.provenance({1: made[0]}))
        self.assertEqual(compare.provenance({1: None}), "no results")

    def test_commands_of_earlier_tables_stay(self):
        cells = [compare.Cell("w", "m", 2, contender, 1) for contender in ("stock", "nearside")]
        with tempfile.TemporaryDirectory() as folder:
            compare.write_commands(Path(folder), {cells[0]: {"command": "old"}, cells[1]: None})
            compare.write_commands(Path(folder), {cells[1]: {"command": "other"}})
            compare.write_commands(Path(folder), {cells[0]: {"command": "new"}})
            lines = (Path(folder) / "commands").read_text().splitlines()
        self.assertEqual(lines[1:], [f"# {cells[0]}", "new", f"# {cells[1]}", "other"])


    def test_a_comparison_leaves_its_table_and_how_it_was_made(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "machines").mkdir()
            asked = "lab/compare warehouse --domains 2 --ratios 1.5,2.0"
            options = SimpleNamespace(results=Path(folder), required=False, found=False, quick=False, jobs=None, asked=asked, seeds=1)
            vars(options).update(workload="warehouse", machine="x460-small", ratios=[1.5, 2.0], domains=[2])
            options.contenders = ["stock", "nearside"]
            with contextlib.redirect_stdout(io.StringIO()), unittest.mock.patch.object(compare, "call", lambda *_: "a/6.1-amd64/b"):
                code = compare.compare(options, runner_of=lambda *_: FakeRunner())
            self.assertEqual(code, 1)
            text = (Path(folder) / "warehouse.x460-small.ratios-1.5-2.0.md").read_text()
            self.assertTrue(text.startswith(f"Written by `{asked}` (2026-11-23, commit 1234567, Linux 7.1, QEMU 10.0, "), text)
            self.assertEqual(text.count("Without a result: nearside."), 2)
            self.assertTrue((Path(folder) / "warehouse.x460-small.2-domains.ratios.svg").exists())


class Options(unittest.TestCase):
    def parse(self, *words):
        with unittest.mock.patch.object(sys, "argv", ["lab/compare", *words]), contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                return compare.parse_options(), ""
            except SystemExit as end:
                return end.code, said.getvalue()

    def test_workloads_are_those_of_the_program(self):
        source = (LAB / "workloads/src/workload.rs").read_text()
        self.assertEqual(tuple(re.findall(r'Workload \{\s*name: "(\w+)"', source)), compare.WORKLOADS)

    def test_a_workload_that_there_is_not_is_refused_at_once(self):
        code, said = self.parse("warehose")
        self.assertEqual(code, 2)
        self.assertIn("'warehouse', 'skewed'", said)

    def test_who_asks_for_nothing_gets_the_warehouse(self):
        options, _ = self.parse("--seeds", "2")
        self.assertEqual((options.workload, options.jobs, options.asked), ("warehouse", None, "lab/compare --seeds 2"))

    def test_no_more_guests_at_a_time_than_memory_allows(self):
        cells = [compare.Cell("w", machine, 2, "stock", 1) for machine in ("pairs", "x460-small")]
        gib = 1 << 30
        for cpus, available, expected in ((4, 100 * gib, 4), (4, 11 * gib, 2), (4, 3 * gib, 1)):
            has_memory = unittest.mock.patch.object(compare, "available_bytes", return_value=available)
            has_cpus = unittest.mock.patch.object(compare.os, "cpu_count", return_value=cpus)
            with has_memory, has_cpus:
                self.assertEqual(compare.jobs_for(cells), expected)
        self.assertGreater(compare.available_bytes(), 0)


class Required(unittest.TestCase):
    def test_it_is_no_more_than_150_guests(self):
        cells = [cell for part in required.SET for cell in compare.cells_of(replace(part, ratios=()), Path())]
        per_ratio = [cell for part in required.SET for _ in part.ratios[1:] for cell in compare.cells_of(replace(part, ratios=()), Path())]
        # Of skewed's domains one pin knows what the other does not.
        guests = [cell for cell in cells + per_ratio if cell.contender != "pin-oracle" or cell.workload == "skewed"]
        self.assertLessEqual(len(guests), 150)
        self.assertLessEqual({cell.contender for cell in cells}, set(compare.CONTENDERS))

    def shown(self, rows, ratios, curves=None):
        return required.Shown(rows, compare.name_of, ratios, compare.CONTENDERS, compare.BOUNDS, compare.FIGURES, curves or {})

    def requirements(self, times):
        """What is said of each, where these were measured."""
        cells = {compare.Cell(*key, seed): ms for key, seeds in times.items() for seed, ms in enumerate(seeds)}
        rows = compare.rows_of({cell: result(ms, (ms, ms)) for cell, ms in cells.items()})
        shown = self.shown(rows, {"x460-small": 2.6, "one-node": 1})
        return {what: rest for what, *rest in required.requirements(shown)}, list(required.published(shown))

    def warehouse(self, **times):
        return {("warehouse", "x460-small", 16, name.replace("_", "-")): ms for name, ms in times.items()}

    def test_what_is_required_is_judged_by_the_medians(self):
        times = self.warehouse(stock=(230, 240, 250), nearside=(150, 151, 155), local=(149, 150, 151))
        times |= {("skewed", "x460-small", 16, "nearside"): (100, 100), ("skewed", "x460-small", 16, "pin-naive"): (119, 119)}
        times |= {("dbench", "x460-small", 16, "stock"): (160,), ("dbench", "x460-small", 16, "nearside"): (100,)}
        times |= {("dbench", "x460-small", 4, "stock"): (1,)}
        said, published = self.requirements(times)
        at = "16 domains, ratio 2.6 on `x460-small`"
        self.assertEqual(said[f"`warehouse`, {at}: 1.4 times stock without NUMA balancing"], ["1.589", "reached"])
        self.assertEqual(said[f"`warehouse`, {at}: 0.97 of the bound"], ["0.993", "reached"])
        self.assertEqual(said[f"`skewed`, {at}: 1.2 times the naive pins"], ["1.190", "**not reached**"])
        self.assertEqual(said["`sdet`, 8 domains on `one-node`: 0.99 times stock without NUMA balancing"], ["", "not measured"])
        self.assertEqual(said["`dbench`, 16 domains, beside the published +50 %: the gain over stock"], ["+60.0 %", "reached"])
        self.assertIn(("`dbench`, published", "+0.0 %", "+7.8 %", "+24.5 %", "+50.0 %"), published)
        self.assertIn(("`dbench`, Nearside", "", "", "", "+60.0 %"), published)

    def test_ahead_is_who_is_faster_than_everybody_at_their_best(self):
        others = {name.replace("-", "_"): (300, 310) for name in compare.CONTENDERS if name not in (*compare.BOUNDS, "nearside")}
        ahead = ".. ahead of every contender outside the spread"
        for times, verdict in (
            ({**others, "numad": (200, 220), "nearside": (150, 199)}, "reached"),
            ({**others, "numad": (200, 220), "nearside": (150, 200)}, "**not reached**"),
            ({"stock": (200, 220), "nearside": (150, 199)}, "not measured"),
            ({"nearside": (150, 199)}, "not measured"),
        ):
            said, _ = self.requirements(self.warehouse(**times))
            self.assertEqual(said[ahead][1], verdict)
        said, _ = self.requirements(self.warehouse(**{**others, "pin_naive": (100, 120), "pin_oracle": (100, 120), "nearside": (150, 152)}))
        self.assertEqual(said[ahead][0], "151 ms (150 .. 152); the nearest: `pin-naive` and `pin-oracle`, 110 ms (100 .. 120)")

    def test_a_column_for_each_ratio_and_number_of_domains_and_a_row_for_each_contender(self):
        times = {"stock": (300, 301, 310), "nearside": (200, 200, 200)}
        cells = {compare.Cell("w", "m", 16, c, seed): time for c in times for seed, time in enumerate(times[c])}
        cells |= {compare.Cell("w", "m.ratio-2.0.toml", 16, "stock", 1): 150, compare.Cell("w", "m", 4, "nearside", 1): 90}
        rows = compare.rows_of({cell: result(time, (150, 150)) for cell, time in cells.items()})
        ratios = {"m": 2.6, "m.ratio-2.0": 2.0}
        more = ("today", ["w, 8 domains on m: stock"])
        lines = required.text_of(self.shown(rows, ratios, {("w", "m", 16): Path("images/w.svg")}), *more).splitlines()
        self.assertIn("|  | 4 domains, ratio 2.6 | 16 domains, ratio 2.0 | 16 domains, ratio 2.6 |", lines)
        self.assertIn(f"| {compare.CONTENDERS['stock']} |  | 150 ms | 301 ms (300 .. 310) |", lines)
        self.assertIn(f"| {compare.CONTENDERS['nearside']} | 90 ms |  | 200 ms (200 .. 200), 1.50 x |", lines)
        self.assertIn("- w, 8 domains on m: stock", lines)
        self.assertTrue(any(line.startswith("![") and line.endswith("(images/w.svg)") for line in lines))
        with self.assertRaises(LabError):
            required.text_of(self.shown({}, ratios), *more)

    def compare(self, page, runner, **changes):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "machines").mkdir()
            options = SimpleNamespace(results=Path(folder), required=True, found=False, jobs=2, contenders=list(compare.CONTENDERS))
            vars(options).update(changes)
            with contextlib.redirect_stdout(io.StringIO()), unittest.mock.patch.object(compare, "call", lambda *_: "a/6.1-amd64/b"):
                code = compare.compare(options, page, lambda *_: runner)
            return code, (Path(folder) / "commands").read_text()

    def page(self, folder):
        page = Path(folder) / "page.md"
        page.write_text(f"{required.BEGIN}\n{required.END}\n")
        return page

    def test_a_contender_alone_and_what_of_the_others_was_found_is_written_and_the_rest_named(self):
        with tempfile.TemporaryDirectory() as folder:
            page, runner = self.page(folder), FakeRunner(found=["balancing"])
            code, commands = self.compare(page, runner, contenders=["stock"])
            self.assertEqual(code, 0)
            self.assertEqual(set(runner.ran), {"stock"})
            text = page.read_text()
            self.assertIn(f"| {compare.CONTENDERS['balancing']} | 100 ms, 1.50 x |", text)
            self.assertIn("- warehouse, 16 domains on x460-small: numad, pin-naive,", text)
            self.assertIn("results of 2026-11-23, commit 1234567, Linux 7.1, QEMU 10.0,", text)
            self.assertTrue((Path(folder) / "images/warehouse.x460-small.16-domains.ratios.svg").exists())
            self.assertIn("# stock", commands)

    def test_a_guest_that_fails_leaves_what_the_others_found_and_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            page = self.page(folder)
            code, _ = self.compare(page, FakeRunner(), contenders=["stock", "nearside"])
            self.assertEqual(code, 1)
            self.assertIn(compare.CONTENDERS["stock"], page.read_text())

    def test_a_page_without_marks_is_refused_before_anything_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            page, runner = Path(folder) / "page.md", FakeRunner()
            page.write_text("no marks")
            with self.assertRaises(LabError):
                self.compare(page, runner)
            self.assertEqual(runner.ran, [])

    def test_the_page_has_the_marks(self):
        required.split(LAB.parent / "docs/performance.md")

    def test_it_is_written_between_the_marks_and_nowhere_else(self):
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.md"
            page.write_text(f"before\n{required.BEGIN}\nold\n{required.END}\nafter\n")
            for _ in range(2):
                required.write_into(page, "new")
                self.assertEqual(page.read_text(), f"before\n{required.BEGIN}\n\nnew\n{required.END}\nafter\n")
            page.write_text("no marks")
            with self.assertRaises(LabError):
                required.write_into(page, "new")
            self.assertEqual(page.read_text(), "no marks")


if __name__ == "__main__":
    unittest.main()
