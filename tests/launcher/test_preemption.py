"""A notice before preemption, with real agents and workers: who hears what, what is saved, who goes and how."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import Job, Meeting, in_one_round, last_rank, outputs
from kits.launcher.harness import Agent

from rdzv_plugins.errors import Preempted

CODE = Preempted.exit_code


def heard(agent: Agent) -> list[dict[str, Any]]:
    """What its workers of hears.py have heard."""
    return [report for report in agent.reports() if "notice" in report]


def test_all_ranks_save_the_same_step_and_the_others_go_on_from_it(meeting: Meeting) -> None:
    meeting.serve()
    stop = meeting.directory / "stop-none"
    conf = "last_call_timeout=80,ttl=60"
    job = Job(meeting, "2:3", script="saves.py", args=(stop, 0.02), conf=conf, flags=["--preempt-grace=600"])
    agents = [job.node(rank) for rank in range(3)]
    before = in_one_round(*agents)
    ranks = {last_rank(agent): agent for agent in agents}
    goes, others = ranks.pop(1), [*ranks.values()]
    os.kill(goes.pid, signal.SIGTERM)
    assert goes.wait(60) == CODE, outputs(agents)
    found = [json.loads(path.read_text()) for path in sorted(meeting.directory.glob("saved-1-?"))]
    assert len(found) == 3, outputs(agents)
    assert len({(each["step"], each["total"], each["round"]) for each in found}) == 1, found
    assert {each["node"] for each in found} == {1}
    assert all(each["left"] > 20 for each in found)
    after = in_one_round(*others, after=before)
    assert [report["FROM"] for report in after] == [found[0]["step"]] * 2, "all that was done before is kept"
    assert {report["TORCHELASTIC_RESTART_COUNT"] for report in after} == {"0"}
    stop.touch()
    assert [agent.wait() for agent in others] == [0, 0], outputs(agents)


@pytest.mark.thorough
def test_every_form_of_a_notice(meeting: Meeting) -> None:
    """A call, a file and a signal; workers that say nothing of steps have time until the deadline, or say that."""
    meeting.serve()
    flags = ["--preempt-grace=600", "--worker-notice-signal=USR2"]
    args = (meeting.directory / "stop-none", "says", "handles")
    job = Job(meeting, "1:2", script="hears.py", args=args, nproc=2, flags=flags)
    agents = [job.node(rank) for rank in range(2)]
    for agent in agents:
        eventually(lambda agent=agent: agent.text.count(" begins") == 2, lambda: outputs(agents))
    started = time.time()
    os.kill(agents[0].pid, signal.SIGTERM)
    assert agents[0].wait(60) == CODE, outputs(agents)
    # what the other node's workers have written may still be on its way through their agent
    all_ranks = set("0123")
    eventually(
        lambda: {each["RANK"] for agent in agents for each in heard(agent)} == all_ranks, lambda: outputs(agents)
    )
    reports = [*heard(agents[0]), *heard(agents[1])]
    assert len({json.dumps(report["notice"]) for report in reports}) == 1, "the same for all"
    for report in reports:
        said, told = report["file"], report["notice"]
        assert {name: said[name] for name in told} == told
        assert told["step"] is None
        assert report["signals"] == [signal.SIGUSR2]
        assert 0 < report["left"] < 600
        assert 0 < said["deadline"] - started < 700
    (meeting.directory / "stop-none").touch()
    assert agents[1].wait(60) == 0, outputs(agents)
