"""What the soak finds of agents: stand-ins do wrong what a launcher could do wrong."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from kits.hosts.hosts import Host, Lan

from rdzv_plugins.testing.processes import marked
from soak import soak as module
from soak.diary import Diary
from soak.ends import Ends
from soak.expectations import Promises
from soak.job import AgentProcess, Job, Node, temporary_files
from soak.schedule import Burst, Fault
from soak.service import Service
from soak.soak import Soak
from soak.tally import Tally

KILL, TERM = Fault("kill_agent", "here"), Fault("term_agent", "here")
HERE = cast(Host, SimpleNamespace(name="here", enter=lambda directory: [sys.executable]))
"""A host that is this one."""


def watched(directory: Path, wrong: str, *faults: Fault, slack: float = 5, pause: float = 0.1) -> Soak:
    """A soak of one stand-in with these faults, a burst each."""
    (directory / "wrong").write_text(wrong)
    job = Job(directory, [Node(HERE)], torch=False)
    job.command = [str(Path(__file__).parent / "stand_in_agent.py")]
    promises = Promises(ttl=1, reach_timeout=1, outage=60, slack=slack, torch=False)
    soak = Soak(directory, cast(Lan, None), job, Service("nowhere"), promises, 1)
    bursts = [Burst(number, pause, (fault,)) for number, fault in enumerate(faults)]
    with closing(soak):
        soak.run(bursts, ["here"], float("inf"))
    tokens = {*re.findall('"agent": "(.+?)"', (directory / "records/here.jsonl").read_text())}
    assert tokens
    assert not any(map(marked, tokens))
    return soak


@pytest.mark.thorough
def test_nothing_is_wrong(tmp_path: Path) -> None:
    soak = watched(tmp_path, "", KILL, TERM)
    assert soak.tally.violations == []
    assert soak.tally.jobs == {"done": 1}
    assert soak.checker.worked == 3
    assert soak.tally.line()["recovery_s"].keys() == {"kill_agent", "term_agent"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("wrong", "fault", "pause", "kind", "shown"),
    [
        ("leaves", KILL, 0.1, "left_behind", ("sleep 100", "SIGKILL")),
        ("code", TERM, 0.1, "exit_code", ("SIGTERM",)),
        ("ends", KILL, 60, "job_ended", ("68",)),
    ],
)
def test_what_an_agent_does_wrong_is_found(tmp_path: Path, wrong, fault, pause, kind, shown) -> None:
    soak = watched(tmp_path, wrong, fault, pause=pause)
    assert {violation.kind for violation in soak.tally.violations} == {kind}
    assert all(each in str(soak.tally.violations[0]) for each in shown)


@pytest.mark.thorough
def test_job_that_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GIVE_UP_S", 1.0)
    monkeypatch.setattr(Promises, "start_limit", lambda self: 60.0)  # only what comes after the fault is too late
    soak = watched(tmp_path, "stands", KILL, slack=0.05)
    assert [violation.kind for violation in soak.tally.violations] == ["not_back"]
    assert soak.tally.jobs == {"not back": 1}


def test_newcomer_to_a_job_that_ends_as_documented_is_not_waited_for() -> None:
    """It has met nobody of that job: with whoever serves the endpoint next it would count rounds from 1 again."""
    promises = Promises(ttl=1, reach_timeout=1, outage=60, slack=1, torch=False, serving="node0")
    ends = Ends(promises, cast(Diary, SimpleNamespace(note=print, event=lambda *_, **__: None)), Tally([]))
    (gone, member, newcomer) = (
        cast(AgentProcess, SimpleNamespace(node=name, token=name, started=0.0, code=76, sent=[], pid=1))
        for name in ("node1", "node2", "node3")
    )
    ends.judge(cast(Node, SimpleNamespace(name="node1")), gone, [Fault("term_agent", "node0")])
    workers = {"node0", "node1", "node2"}
    assert ends.waits_for([member, newcomer], workers)
    assert not ends.waits_for([newcomer], workers)


def test_what_an_agent_leaves_but_logs_is_seen(tmp_path: Path) -> None:
    for name in ("rdzv-run-empty", "rdzv-run-logs/logs", "rdzv-run-more/logs", "torchelastic_1"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("rdzv-run-logs/logs/stacks.log", "rdzv-run-more/logs/stacks.log", "rdzv-run-more/lock", "rdzv-file"):
        (tmp_path / name).touch()
    assert temporary_files(tmp_path) == ["rdzv-file", "rdzv-run-empty", "rdzv-run-more"]
