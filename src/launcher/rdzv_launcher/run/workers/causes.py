"""What is known of the cause of a worker's end, beyond its exit code: memory, or imports."""

from __future__ import annotations

from collections.abc import Sequence

from rdzv_launcher.run.workers.memory_kills import MemoryKills
from rdzv_launcher.run.workers.tracebacks import read_traceback


def cause_of(exit_code: int, stderr: Sequence[str], kills: MemoryKills) -> str:
    """A sentence for people; empty if nothing more is known. ``stderr``: the last lines of the worker's stderr."""
    if killed := kills.describe(exit_code):
        return killed
    found = read_traceback(stderr) if exit_code > 0 else None
    if found is None or not found.importing:
        return ""
    what = f"{found.exception} at {found.place}" if found.place else "the interpreter has found no program"
    return f"It failed while it imported its modules: {what}."
