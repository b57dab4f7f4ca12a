"""What the lab's programs share."""

import os
from pathlib import Path

LAB = Path(__file__).resolve().parent
CACHE = Path(
    os.environ.get("NEARSIDE_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nearside"
)


class LabError(Exception):
    """The lab cannot do what was asked; the message says why."""
