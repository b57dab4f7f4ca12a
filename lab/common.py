"""What the lab's programs share."""

import os
import threading
from pathlib import Path

LAB = Path(__file__).resolve().parent
CACHE = Path(
    os.environ.get("NEARSIDE_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nearside"
)


class LabError(Exception):
    """The lab cannot do what was asked; the message says why."""


def replace(path, text):
    """Whole, whoever reads it meanwhile or does the same."""
    partial = path.with_name(f"{path.name}.{threading.get_ident()}")
    partial.write_text(text)
    partial.rename(path)
