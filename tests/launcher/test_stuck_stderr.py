"""Nobody reads an agent's standard error: it goes on to serve the others, and ends when it is told to."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from kits.eventually import eventually
from kits.launcher.harness import Cluster

pytestmark = pytest.mark.thorough

_PIPE_SETS_SIZE = 1031


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


@pytest.mark.parametrize("reads_on", [True, False], ids=["read again", "never read"])
def test_last_words_are_not_lost_and_what_is_dropped_is_counted(tmp_path: Path, reads_on: bool) -> None:
    """By the command's own pieces, with a pipe that holds little."""
    program = (
        "import sys, threading\n"
        "from rdzv_launcher.console import open_standard_streams, say\n"
        "open_standard_streams()\n"
        "for number in range(40_000):\n    sys.stderr.write(f'line {number:06} ' + '-' * 50 + '\\n')\n"
        "print('said all', flush=True)\n"
        "sys.stdin.readline()\n"
        "say('rdzv-run', 'the last words')\n"
        "sys.exit(3)\n"
    )
    reading, writing = os.pipe()
    fcntl.fcntl(writing, _PIPE_SETS_SIZE, 4096)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writing
    )
    os.close(writing)
    assert process.stdout
    assert process.stdin
    with process, open(reading, "rb") as stderr:
        assert process.stdout.readline() == b"said all\n"
        text = b""
        if reads_on:  # some of it, so that it flows again before the last words
            while b"were dropped" not in text:
                text += stderr.readline()
        process.stdin.write(b"\n")
        process.stdin.close()
        if reads_on:
            text += stderr.read()
        assert process.wait(60) == 3
    if reads_on:
        lines = text.decode().splitlines()
        written = [line for line in lines if line.startswith("line ")]
        (dropped,) = [line for line in lines if "were dropped" in line]
        assert f" {40_000 - len(written)} " in dropped
        assert lines[-1] == "rdzv-run: the last words"
