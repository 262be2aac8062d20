"""``worker_ports``: a worker of an old round that comes late does not find the store of the next round."""

from __future__ import annotations

import json
import socket
import subprocess

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import Job, Meeting, outputs, parallel_only
from kits.launcher.harness import free_port

pytestmark = pytest.mark.thorough


def free_range(count: int) -> str:
    while True:
        first = free_port()
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return f"{first}-{first + count - 1}"


@parallel_only
def test_worker_whose_agent_was_killed_is_late(meeting: Meeting) -> None:
    """With gloo: the keys that it would leave there are what the others' group is made of."""
    meeting.serve()
    job = Job(meeting, "2:3", script="late.py", conf=f"last_call_timeout=60,worker_ports={free_range(4)}", args=("-",))
    agents = [job.node(rank) for rank in range(3)]
    begun = [meeting.directory / f"first-{rank}" for rank in range(3)]
    told = meeting.directory / "late-worker"
    eventually(told.exists, lambda: outputs(agents))
    command, variables = json.loads(told.read_text())
    late = subprocess.Popen(command, env=variables, cwd=meeting.directory)  # no keeper has it
    try:
        eventually(lambda: all(each.exists() for each in begun), lambda: outputs(agents))
        meeting.kill(agents[2].pid)
        codes = [agent.wait() for agent in agents[:2]]
        assert codes == [0, 0], outputs(agents)
    finally:
        late.kill()
        late.wait()
    for agent in agents[:2]:
        (report,) = agent.reports()
        assert report["LATE"] == "refused"
        assert report["SUM"] == 1
        assert report["PORT"] != int(begun[0].read_text())
