"""What people are told of an elastic rendezvous: who is there, who is missing, what differs; and when it is said."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from typing import Any

import pytest
from kits.clock import Clock
from kits.unit.membership_steps import Leader, node, working

from rdzv_plugins.elastic.coordinator.coordinator import Neighbours
from rdzv_plugins.elastic.coordinator.member_table import ranks
from rdzv_plugins.elastic.join import ProgressReporter
from rdzv_plugins.elastic.keys import Assignment
from rdzv_plugins.elastic.node_session import settings_of
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.errors import SettingsDiffer
from rdzv_plugins.interfaces import Request
from rdzv_plugins.rounds.settings_check import compare
from rdzv_plugins.timing import Reporting

REQUEST = Request("memory", "job", "here:1", 1, 2, 1)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([2], "2"), ([3, 1, 4, 5, 9], "1, 3-5, 9"), (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, 14 and 12 more")],
)
def test_ranks(numbers, text):
    assert ranks(numbers) == text


def hearing(size: int, *ranks: int) -> Leader:
    leader = Leader(size, size)
    leader.hear(*(node("ab"[at], rank) for at, rank in enumerate(ranks)))
    return leader


def test_who_is_there_and_who_is_missing():
    """With those who have not joined again, and those who were lost; in a first round without a rank or a host."""
    leader = working(1, 3, *map(node, "abc"))
    leader.lose("a")
    leader.join("b")
    assert leader.machine.facts() == "1 of 1:3 nodes have joined (host-b (pid 7)); missing: host-c (pid 7)"
    some = hearing(4, 1).machine.facts()
    assert some == "1 of 4 nodes have joined (host-a (node rank 1, pid 7)); missing: node rank 0, 2-3"
    assert Leader(2, 3).machine.facts() == "0 of 2:3 nodes have joined (nobody)"
    twice = hearing(2, 0, 0).machine.facts()
    assert twice.endswith(" is claimed by host-a (node rank 0, pid 7) and host-b (node rank 0, pid 7)")
    reaching = Leader(2, 2)
    reaching.hear(node("a"), node("b"))
    reaching.serve()
    reaching.say("a", store_ready_round=1)
    assert reaching.machine.facts().endswith("have yet to reach the workers' store: host-b (pid 7)")


def settings(request: Request = REQUEST, host: str = "host-a", **options) -> dict:
    return settings_of(request, "memory", ElasticOptions(**{"store": "parallel", **options}), host)


def of(*command: str, same_command: str = "arguments") -> dict:
    """The settings of a node with that command."""
    return settings(dataclasses.replace(REQUEST, entrypoint=command), same_command=same_command)


def differ(mine: dict, theirs: dict | bytes) -> SettingsDiffer:
    with pytest.raises(SettingsDiffer) as raised:
        compare(mine, theirs if isinstance(theirs, bytes) else json.dumps(theirs).encode(), "here:1")
    return raised.value


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (settings(), settings(host="host-b")),
        (settings(), settings(dataclasses.replace(REQUEST, nproc_per_node=8))),
        (of("train.py", "--lr=1"), of("/other/place/train.py", "--lr=1")),
        (of("train.py", "--lr=1"), of()),  # plain torchrun does not say
        (of(), of("train.py")),
        (of("a.py", "--node=1", same_command="script"), of("b/a.py", "--node=2", same_command="script")),
        (of("a.py", same_command="no"), of("b.py", same_command="no")),
    ],
)
def test_settings_that_pass_for_the_same(mine, theirs):
    compare(mine, json.dumps(theirs).encode(), "here:1")


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        (settings(), settings(node_unit=2), "--rdzv-conf node_unit: here not set, there 2"),
        (
            settings(),
            settings(dataclasses.replace(REQUEST, min_nodes=4, max_nodes=4), store="torch"),
            "--nnodes: here 1:2, there 4; --rdzv-conf store: here parallel, there torch",
        ),
        (of("a.py", "x"), of("b.py", "x"), "the command: here a.py ..., there b.py ..."),
        (of("a.py", "--lr=1", "-v"), of("a.py", "--lr", "1"), "the command: here a.py --lr -v, there a.py --lr ..."),
        (of("a.py", "--lr=1"), of("a.py", "--lr=2"), "the command: a.py --lr, here and there, with other values"),
        (of("a.py", same_command="script"), of("b.py", same_command="script"), "the command: here a.py, there b.py"),
        (of("a.py"), of("a.py", same_command="no"), "--rdzv-conf same_command: here arguments, there no"),
    ],
)
def test_settings_that_differ_are_all_named_and_commands_without_their_values(mine, theirs, said):
    error = differ(mine, theirs)
    assert str(error).endswith(f" than host-a (pid {os.getpid()}), the first node of the job at here:1: {said}")
    assert ("same_command=script" in error.remedy) == ("the command" in said)


def test_no_value_of_a_command_is_published():
    secrets = ["--token=s3cret", "--password", "s3cret", "-ps3cret", "s3cret=", "--", "--=s3cret", "-1", "-"]
    published = json.dumps(of("/home/s3cret/train.py", *secrets))
    assert "s3cret" not in published
    assert '"train.py --token --password ' in published
    assert len(of("train.py", *["--an-option"] * 100)["command"]) < 250


def test_workers_per_node_differ_where_torch_counts_them(monkeypatch):
    monkeypatch.setenv("TORCH_ELASTIC_WORKER_IDENTICAL", "1")
    other = settings(dataclasses.replace(REQUEST, nproc_per_node=8))
    assert "--nproc-per-node: here 1, there 8" in str(differ(settings(), other))


@pytest.mark.parametrize("text", [b"", b"[]", b'{"settings": {}}', b'{"settings": 1, "by": "x"}'])
def test_settings_of_another_program(text):
    assert "not this version of rdzv-plugins" in str(differ(settings(), text))


def test_another_torch_is_a_warning(caplog):
    compare(settings(), json.dumps({**settings(), "torch": "1.0"}).encode(), "here:1")
    assert "has torch 1.0" in caplog.text


def places(*machines: str, given: int | None = None) -> dict[str, Assignment]:
    return {
        str(rank): Assignment(1, rank, len(machines), "", f"host-{name}", name, pid=rank, node_rank=given)
        for rank, name in enumerate(machines)
    }


def test_two_agents_on_one_machine_are_told_of_once_unless_they_are_meant(caplog):
    Neighbours(allowed=True).check(places("m", "m"))
    Neighbours(allowed=False).check(places("m", "m", given=0))
    neighbours = Neighbours(allowed=False)
    neighbours.check(places("m", "n"))
    assert not caplog.records
    for _ in range(2):
        neighbours.check(places("m", "n", "m"))
    (said,) = caplog.messages
    assert "0 (pid 0) and 2 (pid 2)" in said
    assert "host-m" in said


def test_what_is_waited_for_is_said_every_ten_seconds_and_a_new_kind_once_it_has_lasted_a_second(caplog):
    clock = Clock()
    caplog.set_level(logging.INFO)
    waiting = ProgressReporter(lambda: "for b", live=True, runtime=clock)
    for _ in range(25):
        waiting.report()
        clock.seconds += 1
    waiting.end()
    waiting = ProgressReporter(lambda: "as a spare", live=False, runtime=clock)
    clock.seconds += 2
    waiting.report("spare")
    assert waiting.next_at == clock.seconds + 1
    clock.seconds = waiting.next_at
    waiting.report("spare")
    waiting.report("spare")
    assert caplog.messages == ["waiting: for b (10 s)", "waiting: for b (20 s)", "waiting: as a spare (3 s)"]


@pytest.mark.parametrize(
    ("given", "due"),
    [({}, [10, 20, 30, 40]), ({"first": 1, "grows": True}, [1, 11, 31, 71, 151, 311, 631, 1231, 1831])],
    ids=["every ten seconds", "less and less often, but every ten minutes"],
)
def test_when_a_report_is_due(given: dict[str, Any], due: list[int]):
    clock = Clock()
    clock.seconds = 0.0
    reporting, found = Reporting(**given, runtime=clock), []
    for second in range(due[-1] + 9):
        clock.seconds = float(second)
        if reporting.is_due():
            found.append(second)
    assert found == due
