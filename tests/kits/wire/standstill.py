"""Processes that stand still for a while, as on a machine that swaps."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kits.eventually import eventually


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """All their threads, for the length of the block."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        eventually(lambda: all(_stands(pid) for pid in pids), lambda: pids)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _stands(pid: int) -> bool:
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state in "Tt" for state in states)
