"""A notice before preemption, with real agents and workers: who hears what, what is saved, who goes and how."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import Job, Meeting, in_one_round, last_rank, outputs, parallel_only
from kits.launcher.harness import Agent, Cluster
from kits.launcher.quick_digits import quick_digits

from rdzv_plugins.errors import Preempted
from rdzv_plugins.schedulers.grace import GRACE
from rdzv_plugins.testing.agents.processes import send

CODE = Preempted.exit_code


def kept(directory: Path, round_: int = 1) -> list[dict[str, Any]]:
    """What the ranks of a round have saved, in their order."""
    return [json.loads(path.read_text()) for path in sorted(directory.glob(f"saved-{round_}-?"))]


def saving(meeting: Meeting, nnodes: object, *flags: str, step: float = 0.02) -> Job:
    """A job of workers that save."""
    args = (meeting.directory / "stop-none", step)
    return Job(meeting, nnodes, script="saves.py", args=args, conf="last_call_timeout=80,ttl=60", options=flags)


def heard(agent: Agent) -> list[dict[str, Any]]:
    """What its workers of hears.py have heard."""
    return [report for report in agent.reports() if "notice" in report]


def nodes_of(job: Job, count: int, flags: Sequence[str]) -> list[Agent]:
    return [job.node(rank, flags=flags) for rank in range(count)]


@parallel_only  # what is agreed goes by the same keys over etcd
def test_all_ranks_save_the_same_step_and_the_others_go_on_from_it(meeting: Meeting) -> None:
    meeting.serve()
    job = saving(meeting, "2:3")
    agents = nodes_of(job, 3, ["--preempt-grace=600"])
    before = in_one_round(*agents)
    ranks = {last_rank(agent): agent for agent in agents}
    goes, others = ranks.pop(1), [*ranks.values()]
    os.kill(goes.pid, signal.SIGTERM)
    assert goes.wait(60) == CODE, outputs(agents)
    found = kept(meeting.directory)
    assert len(found) == 3, outputs(agents)
    assert len({(each["step"], each["total"], each["round"]) for each in found}) == 1, found
    assert {each["node"] for each in found} == {1}
    assert all(each["left"] > 20 for each in found)
    after = in_one_round(*others, after=before)
    assert [report["FROM"] for report in after] == [found[0]["step"]] * 2, "all that was done before is kept"
    assert {report["TORCHELASTIC_RESTART_COUNT"] for report in after} == {"0"}
    (meeting.directory / "stop-none").touch()
    assert [agent.wait() for agent in others] == [0, 0], outputs(agents)


@pytest.mark.thorough
@parallel_only
def test_too_few_are_left_and_all_end_with_81(meeting: Meeting) -> None:
    meeting.serve()
    agents = nodes_of(saving(meeting, 2), 2, ["--preempt-grace=600"])
    in_one_round(*agents)
    os.kill(agents[1].pid, signal.SIGTERM)
    assert [agent.wait(60) for agent in agents] == [CODE, CODE], outputs(agents)
    assert len({each["step"] for each in kept(meeting.directory)}) == 1
    assert len(kept(meeting.directory)) == 2


@pytest.mark.thorough
@parallel_only
def test_all_are_told_at_once(meeting: Meeting) -> None:
    """As when the time of a job is up."""
    meeting.serve()
    agents = nodes_of(saving(meeting, "1:3"), 3, ["--preempt-grace=600", "--notice-signals=USR1"])
    in_one_round(*agents)
    told = [pid for agent in agents for pid in (agent.pid, *meeting.workers(agent, "saves.py"))]
    for pid in told:  # a scheduler tells all processes; some may have heard of it from others, and have ended
        send(pid, signal.SIGUSR1)
    assert [agent.wait(60) for agent in agents] == [CODE] * 3, outputs(agents)
    assert len(kept(meeting.directory)) == 3, outputs(agents)
    assert len({each["step"] for each in kept(meeting.directory)}) == 1


@pytest.mark.thorough
@parallel_only
def test_every_form_of_a_notice(meeting: Meeting) -> None:
    """A call, a file and a signal; workers that say nothing of steps have time until the deadline, or say that."""
    meeting.serve()
    job = Job(meeting, "1:2", script="hears.py", args=(meeting.directory / "stop-none", "says", "handles"), nproc=2)
    agents = nodes_of(job, 2, ["--preempt-grace=600", "--worker-notice-signal=USR2"])
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


@pytest.mark.thorough
@parallel_only
def test_a_frozen_agent_keeps_nobody_from_saving(meeting: Meeting) -> None:
    meeting.serve()
    job = Job(
        meeting,
        "1:3",
        script="hears.py",
        args=(meeting.directory / "stop-none", "says"),
        conf="ttl=60,last_call_timeout=80",
    )
    agents = nodes_of(job, 3, ["--preempt-grace=600"])
    for agent in agents:
        eventually(lambda agent=agent: " begins" in agent.text, lambda: outputs(agents))
    os.kill(agents[2].pid, signal.SIGSTOP)
    os.kill(agents[1].pid, signal.SIGTERM)
    for agent in agents[:2]:
        eventually(lambda agent=agent: heard(agent), lambda: outputs(agents))
    assert agents[1].wait(60) == CODE, outputs(agents)
    assert not heard(agents[2])


def alone(cluster: Cluster, *flags: str, how: str = "ends", also: Sequence[str] = (), **env: str) -> Agent:
    stop = cluster.directory / "stop"
    agent = cluster.start(["rdzv-run", *flags, cluster.script("hears.py"), stop, how, *also], **env)
    agent.wait_for("rank 0 begins")
    return agent


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("flags", "env"),
    [
        (["--rdzv-conf=preempt_grace=600,notice_signals=TERM:USR1,worker_notice_signal=USR2"], {}),
        ([], {"RDZV_PREEMPT_GRACE": "600", "RDZV_NOTICE_SIGNALS": "USR1", "RDZV_WORKER_NOTICE_SIGNAL": "USR2"}),
    ],
    ids=["conf", "RDZV"],
)
def test_other_ways_to_say_it(cluster: Cluster, flags: list[str], env: dict[str, str]) -> None:
    agent = alone(cluster, *flags, how="says", also=("handles",), **env)
    os.kill(agent.pid, signal.SIGUSR1)
    assert agent.wait(60) == CODE, agent.text
    assert [report["signals"] for report in heard(agent)] == [[signal.SIGUSR2]]


@pytest.mark.thorough
def test_a_backend_that_carries_no_notice_ends_everywhere(cluster: Cluster) -> None:
    """The workers here are told, and too few are left."""
    stop = cluster.directory / "stop"
    agents = cluster.pair("hears.py", stop, "says", backend="static", options=["--preempt-grace=600"])
    for agent in agents:
        agent.wait_for(" begins")
    os.kill(agents[1].pid, signal.SIGTERM)
    assert [agent.wait(60) for agent in agents] == [CODE, CODE], outputs(agents)
    assert heard(agents[1])
    assert not heard(agents[0])


@pytest.mark.thorough
@parallel_only
def test_the_node_that_serves_the_endpoint_takes_the_job_with_it(meeting: Meeting) -> None:
    agents = nodes_of(saving(meeting, "1:2"), 2, ["--preempt-grace=600"])
    in_one_round(*agents)
    (serves,) = (agent for agent in agents if meeting.listens(agent))
    os.kill(serves.pid, signal.SIGTERM)
    assert [agent.wait(60) for agent in agents] == [CODE, CODE], outputs(agents)
    assert len({each["step"] for each in kept(meeting.directory)}) == 1
    assert len(kept(meeting.directory)) == 2


@pytest.mark.thorough
def test_a_grace_that_is_longer_than_the_scheduler_s_is_said(cluster: Cluster) -> None:
    soon = str(int(time.time()) + 100)
    agent = alone(cluster, "--preempt-grace=120", how="says", **{GRACE: "30", "SLURM_JOB_END_TIME": soon})
    agent.wait_for(re.escape(f"({GRACE}=30)"))
    os.kill(agent.pid, signal.SIGTERM)
    assert agent.wait(60) == CODE, agent.text
    assert "SLURM_JOB_END_TIME" in agent.text


@pytest.mark.thorough
@parallel_only
def test_the_example_saves_in_the_middle_of_an_epoch(meeting: Meeting) -> None:
    """And goes on from there, with one node less: no batch is left out."""
    meeting.serve()
    script, checkpoint = quick_digits(meeting.directory), meeting.directory / "digits.pt"
    flags = ["--rdzv-backend=parallel", f"--rdzv-endpoint={meeting.endpoint}", "--nnodes=1:2", "--preempt-grace=600"]
    flags += ["--rdzv-id=digits", "--rdzv-conf=last_call_timeout=80"]
    train = [script, "--cpu", "--epochs=400", f"--checkpoint={checkpoint}"]
    agents = [meeting.start(["rdzv-run", *flags, f"--node-rank={rank}", *train]) for rank in range(2)]
    agents[0].wait_for("epoch 2/400")
    os.kill(agents[1].pid, signal.SIGTERM)
    assert agents[1].wait(60) == CODE, outputs(agents)
    resumed = agents[0].wait_for(r"rank 0: resumed from epoch (\d+)(?:, (\d+) images after it)?\n")
    saved = [
        line.partition("saved after ")[2] for each in agents for line in each.text.splitlines() if "saved aft" in line
    ]
    assert len(saved) == 2, outputs(agents)
    assert len(set(saved)) == 1
    batch, epoch = (int(word) for word in saved[0].split(",")[0].split() if word.isdecimal())
    # from there, or from the end of an epoch that was over before the workers were told to end
    of_epoch = 45  # all 1437 images, 32 at a time
    at, images = int(resumed[1]), int(resumed[2] or 0)
    assert at * of_epoch + images // 32 >= (epoch - 1) * of_epoch + batch, outputs(agents)
    assert not images or images == batch * 32
