"""Processes whose wall clock is ahead of everybody else's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

HOUR_S = 3600


def ahead(directory: Path, seconds: int = HOUR_S) -> dict[str, str]:
    """Variables of a process whose wall clock is that much ahead; ``directory`` takes the library that does it.

    With ``CLOCK_AHEAD_WHILE=FILE`` as well it is so while FILE is there.
    """
    library, source = directory / f"ahead_{seconds}.so", Path(__file__).with_suffix(".cpp")
    compiler = [os.environ.get("CXX", "c++"), "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*compiler, f"-DAHEAD_S={seconds}", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library)}
