"""Nobody reads an agent's standard error: it goes on to serve the others, and ends when it is told to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from kits.eventually import eventually
from kits.launcher.harness import Cluster

pytestmark = pytest.mark.thorough


@contextmanager
def stuck() -> Iterator[tuple[IO[bytes], int]]:
    """(a pipe that is full, where it can be read)."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
    with open(writing, "wb", buffering=0) as stderr:
        yield stderr, reading
    os.close(reading)


def test_failure_ends_an_agent_with_a_stuck_stderr_by_the_code_of_the_worker(cluster: Cluster) -> None:
    with stuck() as (stderr, _):
        agent = cluster.start(["rdzv-run", cluster.script("plain.py"), "fail", "7"], stderr=stderr)
        assert agent.wait(90) == 7


def test_worker_that_floods_a_stuck_stderr_is_held_up_and_loses_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """More than is kept for it: it waits, as it would without us, and goes on when somebody reads."""
    script = tmp_path / "floods.py"
    script.write_text(
        "import sys\nfor number in range(60_000):\n    sys.stderr.write(f'line {number:06} {\"-\" * 40}\\n')\n"
        "open('written', 'w').close()\n"
    )
    with stuck() as (stderr, reading):
        agent = cluster.start(["rdzv-run", script], stderr=stderr)
        eventually(lambda: cluster.workers(agent, "floods.py"), lambda: agent.text)
        stderr.close()
        text = bytearray()
        while data := os.read(reading, 1 << 16):
            text += data
        assert agent.wait(60) == 0
    lines = [line for line in text.replace(b"x", b"").decode().splitlines() if line.startswith("line ")]
    assert [int(line.split()[1]) for line in lines] == list(range(60_000))
