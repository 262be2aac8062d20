"""Processes that stand still for a while, as on a machine that swaps, and sessions spoken by hand."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kits.eventually import eventually
from kits.wire.trunk_peer import OK, answer, frame, framed, text
from kits.wire.wire_client import Raw

OPEN, KEEP_ALIVE = 3, 9


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


def session(port: int, ttl: float) -> Raw:
    client = framed(port)
    client.send(frame(1, OPEN, struct.pack("<I", int(ttl * 1000)) + text(b"run")))
    assert answer(client)[:2] == (1, OK)
    return client


def keep_alive(client: Raw) -> None:
    """It is answered."""
    client.send(frame(7, KEEP_ALIVE))
    assert answer(client)[:2] == (7, OK)
