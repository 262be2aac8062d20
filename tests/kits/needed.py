"""What some tests cannot do without, and a machine may not have."""

from __future__ import annotations

import os
import shutil

import pytest


def needed(lacks: str) -> None:
    """Unless that is empty, the test is skipped; CI, which has to run all of them, fails."""
    if lacks:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(lacks)


def programs_needed(*names: str, install: str) -> None:
    """The same, for programs."""
    missing = [name for name in names if shutil.which(name) is None]
    needed(f"no {' '.join(missing)}: apt-get install {install}" if missing else "")
