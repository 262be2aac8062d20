"""What memory a process has for itself alone."""

from __future__ import annotations

from pathlib import Path


def private_mib(pid: int | None = None) -> float:
    """Of a process (None: this one), without the pages that it shares with others; 0 where the kernel does not tell."""
    try:
        lines = Path(f"/proc/{'self' if pid is None else pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
