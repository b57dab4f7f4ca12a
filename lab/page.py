"""The parts of a page that a program writes, between two lines that say so."""

from common import LabError


class Part:
    """The part of a page between the lines of one program."""

    def __init__(self, path, program):
        self.path = path
        self.begin, self.end = (
            f"<!-- Written by {program}: {what} -->" for what in ("begin", "end")
        )

    def split(self):
        """The text before the part, the part, and the text after it."""
        before, begin, rest = self.path.read_text().partition(self.begin)
        written, end, after = rest.partition(self.end)
        if not begin or not end:
            raise LabError(
                f"{self.path} has no lines {self.begin!r} and {self.end!r} to write between"
            )
        return before, written, after

    def write(self, text):
        """Replaces the part."""
        before, _, after = self.split()
        self.path.write_text(f"{before}{self.begin}\n\n{text}\n{self.end}{after}")
