"""A leader that lives and cannot act: its node keeps its session alive, and a plug-in's hook does not return."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from kits.launcher.elastic_kit import Job, Meeting, in_one_round, observing, parallel_only
from kits.launcher.harness import plug_in

pytestmark = pytest.mark.thorough  # order: simulation

HOOKS = """
import os, time
from pathlib import Path
from rdzv_plugins import hookimpl

@hookimpl
def rdzv_assign_ranks(request, nodes):
    release = os.environ.get("HANGS")
    while release and not Path(release).exists():
        time.sleep(0.05)
    if release:
        raise RuntimeError("too late")
"""


@pytest.fixture
def hooks(tmp_path: Path) -> str:
    return plug_in(tmp_path, "rdzv_test_hangs", HOOKS)


@parallel_only
def test_leader_that_hangs_in_a_hook_is_followed_by_another(meeting: Meeting, hooks: str) -> None:
    """What it still does when it goes on is void: here its hook fails, which ends the job if a leader's does."""
    meeting.serve()
    release = meeting.directory / "release"
    job = Job(meeting, 3, script="says.py", conf="ttl=10")
    with observing(meeting) as observer:
        stuck = job.node(PYTHONPATH=hooks, HANGS=str(release))
        observer.wait_members(stuck)
        others = [job.node(PYTHONPATH=hooks) for _ in range(2)]
        in_one_round(stuck, *others)
        stuck.wait_for(r"rdzv_assign_ranks \(\S*rdzv_test_hangs.py, line \d+\)")
        assert observer.leader() in [agent.pid for agent in others]
        release.touch()
        stuck.wait_for("too late")
    job.finish(stuck, *others)


@parallel_only
def test_nodes_whose_hooks_hang_end_when_they_are_told_to(meeting: Meeting, hooks: str) -> None:
    """One after the other has tried to lead, and nobody is left."""
    meeting.serve()
    job = Job(meeting, 2, script="says.py", conf="ttl=10")
    agents = [job.node(PYTHONPATH=hooks, HANGS=str(meeting.directory / "never")) for _ in range(2)]
    for agent in agents:
        agent.wait_for("rdzv_test_hangs.py, line")
    for agent in agents:
        os.kill(agent.pid, signal.SIGTERM)
    assert [agent.wait(60) for agent in agents] == [128 + signal.SIGTERM] * 2
