"""Tests of lab/calibrate and the results it keeps. Run by `make unit`."""

import subprocess
import tempfile
import unittest
import unittest.mock
from pathlib import Path
from types import SimpleNamespace

import modelled
from fakes import load_program

calibrate = load_program("calibrate")


class Kept(unittest.TestCase):
    def test_cut_off_results_are_made_again(self):
        told = SimpleNamespace(stdout="a/6.1-amd64/b\nQEMU 10\n")
        made = []

        def make():
            made.append(
                calibrate.Compared(figures=3, off=1, worst={"loaded": 0.5}, lines=["a line"])
            )
            return made[0]

        with (
            tempfile.TemporaryDirectory() as folder,
            unittest.mock.patch.object(calibrate, "RESULTS", Path(folder) / "results"),
            unittest.mock.patch.object(modelled, "find_qemu", lambda: (["qemu"], {})),
            unittest.mock.patch.object(subprocess, "run", lambda *_, **__: told),
        ):
            first = calibrate.kept(("pairs", "lines"), make)
            self.assertEqual(calibrate.kept(("pairs", "lines"), make), first)
            self.assertEqual(len(made), 1)
            (file,) = (Path(folder) / "results").iterdir()
            for text in (file.read_text()[:-9], "3", "{}", ""):
                file.write_text(text)
                self.assertEqual(calibrate.kept(("pairs", "lines"), make), first)
            self.assertEqual(len(made), 5)


if __name__ == "__main__":
    unittest.main()
