"""Reads all log files of a worker, rotated or not."""

from __future__ import annotations

import os
import shutil
from typing import BinaryIO

from rdzv_launcher.run.workers.output.rotated import all_of


def size_of(path: str) -> int:
    """How many bytes there are, in all files of the stream."""
    return sum(os.path.getsize(each) for each in all_of(path)) if path else 0


def copy_all(path: str, target: BinaryIO) -> None:
    """Copy everything, oldest first, byte for byte. Raises ``OSError``."""
    for each in all_of(path):
        with open(each, "rb") as file:
            shutil.copyfileobj(file, target)
