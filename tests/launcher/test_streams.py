"""Standard streams that are gone, closed, full, do not block, or are kept by a process that is left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import IO

import pytest
from kits.eventually import eventually
from kits.launcher.harness import BIN, Agent, Cluster

pytestmark = pytest.mark.thorough


def in_shell(cluster: Cluster, streams: str, mode: str = "fail 7") -> Agent:
    return cluster.start(["/bin/bash", "-c", f"{BIN}/rdzv-run {cluster.script('plain.py')} {mode} {streams}"])


def test_exit_code_survives_whatever_becomes_of_the_streams(cluster: Cluster) -> None:
    gone = in_shell(cluster, "2> >(exec 0<&-; sleep 0)")
    closed = in_shell(cluster, "2>&-")
    assert [gone.wait(), closed.wait()] == [7, 7]
    assert closed.text == "started rank 0\n", "and stderr is not somebody else's socket or file"


def test_closed_standard_streams_do_no_harm(cluster: Cluster) -> None:
    """What is printed there is lost, as the user wants it, and no file of a worker gets such a number."""
    for number, stream in enumerate(("<&-", ">&-", "<&- >&- 2>&-")):
        command = f"{BIN}/rdzv-run --no-python /bin/sh -c 'echo lost && : > there{number}' {stream}"
        agent = cluster.start(["/bin/sh", "-c", command])
        assert agent.wait() == 0, agent.text
        assert (cluster.directory / f"there{number}").exists()


def test_process_left_behind_by_a_worker_may_go_on_writing(cluster: Cluster) -> None:
    """As under torchrun: a logging helper outlives the restart of the worker that started it."""
    agent = cluster.run("leaves_child.py", restarts=1)
    assert agent.wait() == 0, agent.text
    assert (cluster.directory / "child").read_text() == "ok"
    assert "from the child" in agent.text


def full_pipe(blocks: bool) -> tuple[IO[bytes], int]:
    """(its end for a process's stderr, where it can be read)."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, blocks)
    return open(writing, "wb", buffering=0), reading


def test_stderr_that_nobody_reads_keeps_no_agent_from_ending(cluster: Cluster) -> None:
    """By the code of its worker; and by a signal while its worker floods it, where it does not block."""
    stderr, reading = full_pipe(blocks=True)
    with stderr:
        agent = cluster.start(["rdzv-run", cluster.script("plain.py"), "fail", "7"], stderr=stderr)
        assert agent.wait(90) == 7
    os.close(reading)
    stderr, reading = full_pipe(blocks=False)
    with stderr:
        agent = cluster.start(["rdzv-run", cluster.script("plain.py"), "flood"], stderr=stderr)
        agent.wait_for("ready")
        os.kill(agent.pid, signal.SIGTERM)
        assert agent.wait() == 143
    os.close(reading)
    assert cluster.processes() == {}


def test_worker_that_floods_a_full_stderr_is_held_up_and_loses_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """More than is kept for it: it waits, as it would without us, and goes on when somebody reads."""
    script = tmp_path / "floods.py"
    script.write_text(
        "import sys\nfor number in range(60_000):\n    sys.stderr.write(f'line {number:06} {\"-\" * 40}\\n')\n"
    )
    stderr, reading = full_pipe(blocks=True)
    with stderr:
        agent = cluster.start(["rdzv-run", script], stderr=stderr)
        eventually(lambda: cluster.workers(agent, "floods.py"), lambda: agent.text)
    text = bytearray()
    while data := os.read(reading, 1 << 16):
        text += data
    os.close(reading)
    assert agent.wait(60) == 0
    lines = [line for line in text.replace(b"x", b"").decode().splitlines() if line.startswith("line ")]
    assert [int(line.split()[1]) for line in lines] == list(range(60_000))
