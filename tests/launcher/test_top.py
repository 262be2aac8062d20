"""``rdzv top`` of real jobs; its screen, driven key by key, is in tests/unit."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import termios
from typing import Any

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import LASTING, Job, Meeting, Serve, in_one_round, parallel_only
from kits.launcher.harness import BIN


def top(endpoint: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "rdzv"), "top", f"--rdzv-endpoint={endpoint}", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def job_of(meeting: Meeting) -> dict[str, Any]:
    """What is said of it; nothing where nothing is known."""
    found = top(meeting.endpoint, f"--rdzv-id={meeting.run_id}", "--json").stdout
    return json.loads(found)["jobs"][0] if found else {"round": {"number": 0}, "nodes": []}


def states(job: dict[str, Any]) -> list[tuple[int | None, int, str]]:
    return [(each["rank"], each["pid"], each["state"]) for each in job["nodes"]]


@pytest.mark.parametrize("backend", ["parallel", pytest.param("etcd", marks=pytest.mark.thorough)], indirect=True)
def test_a_job_that_works(meeting: Meeting) -> None:
    """At a service of its own, too: the backend is found by what answers."""
    job = Job(meeting, 1, script="says.py", conf=LASTING)
    node = job.node()
    (report,) = in_one_round(node)
    eventually(lambda: states(job_of(meeting)) == [(0, node.pid, "works")], lambda: str(job_of(meeting)))
    (seen,) = job_of(meeting)["nodes"]
    assert [worker["pid"] for worker in seen["workers"]] == [int(report["PID"])]
    job.finish(node)


@pytest.mark.thorough
@parallel_only
def test_a_job_that_restarts_and_loses_a_node_and_a_service_that_freezes(meeting: Meeting) -> None:
    serve = Serve(meeting)
    job = Job(meeting, "1:2", script="says.py", restarts=1)
    nodes = [job.node(rank) for rank in range(2)]
    before = in_one_round(*nodes)
    shown = in_terminal(meeting.endpoint)
    assert "Traceback" not in shown

    os.kill(job.workers(nodes[1])[0], signal.SIGKILL)
    before = in_one_round(*nodes, after=before)
    both = [(rank, node.pid, "works") for rank, node in enumerate(nodes)]
    eventually(lambda: states(job_of(meeting)) == both, lambda: str(job_of(meeting)))
    assert job_of(meeting)["round"]["number"] == 2
    assert [each["restarts"] for each in job_of(meeting)["nodes"]] == [0, 1]

    job.kill_node(nodes[1])
    in_one_round(nodes[0], after=before)
    eventually(lambda: states(job_of(meeting)) == both[:1], lambda: str(job_of(meeting)))
    os.kill(serve.agent.pid, signal.SIGSTOP)
    assert top(meeting.endpoint, "--once", "--timeout=1").returncode == 68
    os.kill(serve.agent.pid, signal.SIGCONT)
    job.finish(nodes[0])


def in_terminal(endpoint: str) -> str:
    """What the command writes on a terminal without colours, from its start until q ends it well."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = os.environ | {"NO_COLOR": "1", "TERM": "xterm-256color"}
    command = [str(BIN / "rdzv"), "top", f"--rdzv-endpoint={endpoint}"]
    with subprocess.Popen(command, stdin=secondary, stdout=secondary, stderr=secondary, env=env) as shown:
        os.close(secondary)
        written = b""
        try:
            while select.select([primary], [], [], 60)[0]:
                written += os.read(primary, 65536)
                if b"works" in written and b"Quit" in written:
                    os.write(primary, b"q")
            shown.kill()
        except OSError:  # it has ended
            pass
        finally:
            os.close(primary)
    assert shown.returncode == 0, written
    return written.decode(errors="replace")


def test_an_endpoint_that_is_something_else_is_said() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{nobody.getsockname()[1]}"
        found = top(endpoint, "--once", "--timeout=1")
        assert (found.returncode, endpoint in found.stderr) == (68, True)
        assert top(endpoint).returncode == 2, "on no terminal"
