"""Tests of scripts/check-code: small source trees with planted faults. Run by `make unit`."""

import contextlib
import importlib.machinery
import importlib.util
import io
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = Path(__file__).with_name("check-code")


def load():
    loader = importlib.machinery.SourceFileLoader("check_code", str(PROGRAM))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_code", loader))
    sys.modules["check_code"] = module
    loader.exec_module(module)
    return module


sys.dont_write_bytecode = True
check_code = load()


class Tree(unittest.TestCase):
    """Each test writes a small tree and compares the findings."""

    def findings(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return check_code.check(Path(folder))

    def cycles(self, files):
        """The texts of the findings in a crate of `files`, named relative to `src`."""
        tree = {f"src/{name}": text for name, text in files.items()}
        found = self.findings({"Cargo.toml": "[package]\n", **tree})
        self.assertEqual({finding.rule for finding in found} - {"cycle"}, set())
        return [finding.text.replace("src/", "") for finding in found]


class Cycles(Tree):
    def test_siblings_must_not_use_each_other(self):
        found = self.cycles(
            {
                "lib.rs": "mod a;\nmod b;\n",
                "a.rs": "use crate::b::B;\npub struct A(B);\n",
                "b.rs": "pub struct B;\nfn f(a: super::a::A) {}\n",
            }
        )
        self.assertEqual(found, ["a.rs:1 uses b, b.rs:2 uses a"])

    def test_a_ring_of_three_is_a_cycle(self):
        found = self.cycles(
            {
                "lib.rs": "mod a;\nmod b;\nmod c;\n",
                "a.rs": "use crate::b::B;\npub struct A(B);\n",
                "b.rs": "use crate::c::C;\npub struct B(C);\n",
                "c.rs": "use crate::{\n    a::A,\n};\npub struct C(A);\n",
            }
        )
        self.assertEqual(found, ["a.rs:1 uses b, b.rs:1 uses c, c.rs:2 uses a"])

    def test_one_direction_is_no_cycle(self):
        files = {
            "lib.rs": "mod a;\nmod b;\n",
            "a.rs": "use crate::b::B;\npub struct A(B);\n",
            "b.rs": "pub struct B;\n",
        }
        self.assertEqual(self.cycles(files), [])

    def test_child_and_parent_must_not_use_each_other(self):
        found = self.cycles(
            {
                "lib.rs": "mod a;\n",
                "a.rs": "mod child;\npub struct A;\nfn f() { child::g() }\n",
                "a/child.rs": "pub fn g(_: super::A) {}\n",
            }
        )
        self.assertEqual(found, ["a/child.rs:1 uses a, a.rs:3 uses child"])

    def test_child_may_use_parent_that_only_exports_it(self):
        files = {
            "lib.rs": "mod a;\n",
            "a.rs": "mod child;\npub use child::g;\npub struct A;\n",
            "a/child.rs": "use super::A;\npub fn g(_: A) {}\n",
        }
        self.assertEqual(self.cycles(files), [])

    def test_parent_that_exports_a_name_and_uses_it_depends_on_it(self):
        files = {
            "lib.rs": "mod a;\n",
            "a.rs": "mod child;\npub use child::g;\npub struct A;\nfn f() { g(A) }\n",
            "a/child.rs": "use super::A;\npub fn g(_: A) {}\n",
        }
        self.assertEqual(self.cycles(files), ["a/child.rs:1 uses a, a.rs:2 uses child"])

    def test_reexports_stand_for_the_module_that_defines_the_item(self):
        files = {
            "lib.rs": "mod a;\nmod b;\npub use a::A;\npub use b::*;\n",
            "a.rs": "pub struct A;\n",
            "b.rs": "use crate::A;\npub struct B(A);\n",
        }
        self.assertEqual(self.cycles(files), [])
        files["a.rs"] = "use crate::B;\npub struct A(B);\n"
        self.assertEqual(self.cycles(files), ["a.rs:1 uses b, b.rs:1 uses a"])

    def test_a_module_imported_by_name_is_used_through_its_paths(self):
        found = self.cycles(
            {
                "lib.rs": "mod a;\nmod b;\n",
                "a.rs": "use crate::b;\npub struct A;\nfn f() { b::g() }\n",
                "b.rs": "use crate::a::A;\npub fn g() {}\n",
            }
        )
        self.assertEqual(found, ["a.rs:3 uses b, b.rs:1 uses a"])

    def test_items_for_tests_do_not_count(self):
        files = {
            "lib.rs": "mod a;\nmod b;\n",
            "a.rs": "use crate::b::B;\npub struct A(B);\n",
            "b.rs": "pub struct B;\n#[cfg(test)]\nuse crate::a::A;\n"
            "#[cfg(test)]\n#[allow(dead_code)]\nmod tests { use crate::a::A; fn f() { A; } }\n",
        }
        self.assertEqual(self.cycles(files), [])
        files["b.rs"] += "fn g() -> crate::a::A {}\n"
        self.assertEqual(self.cycles(files), ["a.rs:1 uses b, b.rs:7 uses a"])

    def test_comments_and_strings_do_not_count(self):
        files = {
            "lib.rs": "mod a;\nmod b;\n",
            "a.rs": "use crate::b::B;\npub struct A(B);\n",
            "b.rs": "//! As [`crate::a::A`].\n/* /* */ crate::a::A */\npub struct B;\n"
            'const S: [&str; 2] = ["\\"crate::a::A", r#"" crate::a::A"#];\n'
            "fn f<'a>(x: &'a str) -> char { '\"' }\n",
        }
        self.assertEqual(self.cycles(files), [])

    def test_each_program_and_test_of_a_package_is_a_crate(self):
        found = self.findings(
            {
                "Cargo.toml": "[package]\n",
                "src/bin/tool/main.rs": "mod a;\npub struct T;\nfn main() { a::f(T) }\n",
                "src/bin/tool/a.rs": "pub fn f(_: crate::T) {}\n",
                "tests/big/main.rs": "mod x;\nmod y;\n",
                "tests/big/x.rs": "pub use crate::y::Y;\nfn f(_: Y) {}\npub struct X;\n",
                "tests/big/y.rs": "pub struct Y;\nfn f(_: crate::x::X) {}\n",
            }
        )
        self.assertEqual(
            [(finding.file, finding.rule) for finding in found],
            [("src/bin/tool/a.rs", "cycle"), ("tests/big/x.rs", "cycle")],
        )


class Length(Tree):
    def test_comments_and_blank_lines_are_no_code(self):
        comment = "// a\n/* b\n c */\n\n//! d\n" * 400
        self.assertEqual(self.findings({"a.rs": "fn f() {}\n" * 600 + comment}), [])
        found = self.findings({"a.rs": "fn f() {}\n" * 601 + comment})
        text = "a.rs:1: length: 601 lines of code (at most 600)"
        self.assertEqual([str(finding) for finding in found], [text])

    def test_programs_without_suffix_are_known_by_their_first_line(self):
        body = "x=1\n" * 600
        names = ["run", "guest", "page"]
        firsts = ["#!/usr/bin/env python3\n", "#!/bin/busybox sh\n", "no program\n"]
        found = self.findings({name: first + body for name, first in zip(names, firsts)})
        self.assertEqual(found, [])
        found = self.findings({name: first + body + "y=1\n" for name, first in zip(names, firsts)})
        self.assertEqual([finding.file for finding in found], ["guest", "run"])

    def test_tables_are_excepted_as_long_as_they_exist(self):
        check_code.TABLES["a.rs"] = "one row for each case"
        try:
            self.assertEqual(self.findings({"a.rs": "fn f() {}\n" * 601}), [])
            found = self.findings({"b.rs": "fn f() {}\n"})
            self.assertEqual([(f.file, f.rule) for f in found], [("a.rs", "length")])
        finally:
            del check_code.TABLES["a.rs"]


class Columns(Tree):
    def test_lines_end_at_100_columns(self):
        line = "// " + "ä " * 48 + "b"
        self.assertEqual(len(line), 100)
        self.assertEqual(self.findings({"a.rs": f"{line}\n", "b.md": f"{line}cc\n"}), [])
        found = self.findings({"a.rs": f"\n{line}c\n"})
        self.assertEqual([str(f) for f in found], ["a.rs:2: columns: 101 columns (at most 100)"])

    def test_a_tab_reaches_the_next_multiple_of_8(self):
        found = self.findings({"a.c": "\tint a; " + "b" * 85 + "\n", "b.h": "\tint a; " + "b" * 86})
        self.assertEqual([(f.file, f.line) for f in found], [("b.h", 1)])

    def test_a_long_word_alone_may_pass_the_end(self):
        link = "https://example.org/" + "a" * 100
        self.assertEqual(self.findings({"a.rs": f"    /// {link}\n", "b.py": f"# {link}\n"}), [])
        found = self.findings({"a.rs": f"// see {link}\n"})
        self.assertEqual([(f.file, f.rule) for f in found], [("a.rs", "columns")])

    def test_build_products_are_skipped(self):
        line = "// " + "a b" * 60 + "\n"
        self.assertEqual(self.findings({"target/a.rs": line, ".cache/a.rs": line}), [])
        self.assertEqual(len(self.findings({".ci/run": f"#!/bin/sh\n{line}"})), 1)


class Program(Tree):
    def run_main(self, arguments):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            with contextlib.redirect_stderr(io.StringIO()) as err:
                code = check_code.main(arguments)
        return code, out.getvalue(), err.getvalue()

    def test_exit_code_tells_whether_there_are_findings(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "a.rs").write_text("fn f() {}\n")
            self.assertEqual(self.run_main([folder]), (0, "", ""))
            Path(folder, "a.rs").write_text("fn f() {}\n" * 601)
            code, out, err = self.run_main([folder])
        self.assertEqual(code, 1)
        self.assertEqual(out, "a.rs:1: length: 601 lines of code (at most 600)\n")
        self.assertEqual(err, "check-code: 1 findings\n")

    def test_unknown_folder_and_surplus_words_are_refused(self):
        self.assertEqual(self.run_main(["/no/such/folder"])[0], 2)
        self.assertEqual(self.run_main(["a", "b"])[0], 2)


if __name__ == "__main__":
    unittest.main()
