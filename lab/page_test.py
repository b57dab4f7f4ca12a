"""Tests of the parts of pages that programs write. Run by `make unit`."""

import tempfile
import unittest
from pathlib import Path

import required
from common import LAB, LabError
from page import Part

PAGES = {
    required.PROGRAM: LAB.parent / "docs/performance/comparison.md",
    "lab/calibrate --required": LAB.parent / "docs/performance/calibration.md",
}


class Parts(unittest.TestCase):
    def test_each_page_has_its_markers(self):
        for program, page in PAGES.items():
            Part(page, program).split()

    def test_it_is_written_between_the_lines_and_nowhere_else(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.md"
            part = Part(path, "us")
            path.write_text(f"before\n{part.begin}\nold\n{part.end}\nafter\n")
            for _ in range(2):
                part.write("new")
                self.assertEqual(
                    path.read_text(), f"before\n{part.begin}\n\nnew\n{part.end}\nafter\n"
                )
            path.write_text("no lines")
            with self.assertRaises(LabError):
                part.write("new")
            self.assertEqual(path.read_text(), "no lines")


if __name__ == "__main__":
    unittest.main()
