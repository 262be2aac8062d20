"""Rank 0 returns as soon as all are at work, the others when its process waits for them. They fail if it has ended."""

import os
import sys
import time
from pathlib import Path


def returns_first(directory: str) -> bool:
    rank, others = int(os.environ["RANK"]), range(1, int(os.environ["WORLD_SIZE"]))
    if rank == 0:
        while not all(Path(directory, f"rank{each}").exists() for each in others):
            time.sleep(0.01)
    path = Path(directory, f"rank{rank}")
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    first = Path(directory, "rank0")
    while not first.exists():
        time.sleep(0.01)
    pid = first.read_text()
    while rank != 0 and not waits(pid):
        if not os.path.exists(f"/proc/{pid}") or ") Z " in Path(f"/proc/{pid}/stat").read_text():
            raise RuntimeError("rank 0 has ended before the others")
        time.sleep(0.01)
    return True


def waits(pid: str) -> bool:
    """Whether the process waits for a lock on a file."""
    return any("->" in words and pid in words for words in map(str.split, Path("/proc/locks").read_text().splitlines()))


if __name__ == "__main__":
    returns_first(*sys.argv[1:])
