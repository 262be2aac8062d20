"""What people are told of an elastic rendezvous: who is there, who is missing, what differs."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pty
import sys

import pytest
from kits.unit.membership_steps import Leader, node, working

from rdzv_plugins.elastic.keys import Assignment, Member, Round, decode, encode
from rdzv_plugins.elastic.leading import facts
from rdzv_plugins.elastic.leading.neighbours import Neighbours
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.elastic.reports import Reports
from rdzv_plugins.elastic.settings import settings_of
from rdzv_plugins.errors import SettingsDiffer
from rdzv_plugins.interfaces import Request
from rdzv_plugins.rounds.settings_check import compare
from rdzv_plugins.runtime import Runtime

REQUEST = Request("memory", "job", "here:1", 1, 2, 1)


@pytest.mark.parametrize("option", ["node_unit", "min_per_domain"])
def test_shape_of_rounds_is_compared(option):
    mine, theirs = (
        settings_of(REQUEST, "memory", options, "h")
        for options in (ElasticOptions(), dataclasses.replace(ElasticOptions(), **{option: 2}))
    )
    with pytest.raises(SettingsDiffer, match=f"--rdzv-conf {option}: here not set, there 2"):
        compare(mine, json.dumps(theirs).encode(), "here:1")


@pytest.mark.parametrize(("sizes", "text"), [((4, 4), "4"), ((2, 4), "2:4")])
def test_wanted(sizes, text):
    assert facts.wanted(*sizes) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([2], "2"), ([3, 1, 4, 5, 9], "1, 3-5, 9"), (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, 14 and 12 more")],
)
def test_ranks(numbers, text):
    assert facts.ranks(numbers) == text


def test_nobody_has_joined():
    assert Leader(2, 3).machine.facts() == "0 of 2:3 nodes have joined (nobody)"


def test_missing_ranks():
    leader = Leader(4, 4)
    leader.hear(node("a", 1))
    assert leader.machine.facts() == "1 of 4 nodes have joined (host-a (node rank 1, pid 7)); missing: node rank 0, 2-3"


def test_missing_are_those_who_have_not_joined_again():
    leader = working(1, 3, node("a"), node("b"), node("c"))
    leader.lose("a")
    leader.join("b")
    assert leader.machine.facts() == "1 of 1:3 nodes have joined (host-b (pid 7)); missing: host-c (pid 7)"


def test_missing_is_who_was_lost():
    leader = working(2, 2, node("a"), node("b"))
    leader.lose("a")
    leader.join("b")
    assert leader.machine.facts() == "1 of 2 nodes have joined (host-b (pid 7)); missing: host-a (was node 0)"


def test_who_has_still_to_reach_the_store():
    leader = Leader(2, 2)
    leader.hear(node("a"), node("b"))
    leader.serve()
    leader.say("a", reached=1)
    assert leader.machine.facts() == "1 of 2 nodes have still to reach the workers' store: host-b (pid 7)"


def test_rank_that_is_claimed_twice():
    leader = Leader(2, 2)
    leader.hear(node("a", 0), node("b", 0))
    assert leader.machine.facts().endswith(
        "; the same node rank is claimed by host-a (node rank 0, pid 7) and host-b (node rank 0, pid 7)"
    )


@pytest.mark.parametrize("value", [node("a", 1, store=(3, "::1", 9)), Assignment(2, 0, 1), Round(3, "over", 2, "ü")])
def test_keys_are_json_and_back(value):
    assert decode(type(value), encode(value)) == value
    json.loads(encode(value))


@pytest.mark.parametrize("text", [b"", b"[]", b"3", b"{}", b'{"node_id": 1, "what": 2}', b"\xff", b"\x80\x04K\x01."])
def test_anything_else_is_no_member(text):
    with pytest.raises(ValueError):  # noqa: PT011
        decode(Member, text)


def settings(
    request: Request = REQUEST, store: str = "parallel", host: str = "host-a", same_command: str = "arguments"
) -> dict:
    return settings_of(request, "memory", ElasticOptions(store=store, same_command=same_command), host)


def test_same_settings():
    compare(settings(), json.dumps(settings(host="host-b")).encode(), "here:1")


def test_settings_that_differ_are_all_named():
    theirs = json.dumps(settings(Request("memory", "job", "here:1", 4, 4, 1), "torch", "host-b")).encode()
    with pytest.raises(SettingsDiffer) as raised:
        compare(settings(), theirs, "here:1")
    text = str(raised.value)
    assert f"than host-b (pid {os.getpid()}), the first node of the job at here:1: " in text
    assert "--nnodes: here 1:2, there 4; --rdzv-conf store: here parallel, there torch" in text


def of(*command: str, same_command: str = "arguments") -> dict:
    """The settings of a node with that command."""
    return settings(dataclasses.replace(REQUEST, entrypoint=command), same_command=same_command)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (of("train.py", "--lr=1"), of("/other/place/train.py", "--lr=1")),
        (of("train.py", "--lr=1"), of()),  # plain torchrun does not say
        (of(), of("train.py")),
        (of("a.py", "--node=1", same_command="script"), of("b/a.py", "--node=2", same_command="script")),
        (of("a.py", same_command="no"), of("b.py", same_command="no")),
    ],
)
def test_commands_that_pass_for_the_same(mine, theirs):
    compare(mine, json.dumps(theirs).encode(), "here:1")


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        (of("a.py", "x"), of("b.py", "x"), "the command: here a.py ..., there b.py ..."),
        (of("a.py", "--lr=1", "-v"), of("a.py", "--lr", "1"), "the command: here a.py --lr -v, there a.py --lr ..."),
        (of("a.py", "--lr=1"), of("a.py", "--lr=2"), "the command: a.py --lr, here and there, with other values"),
        (of("a.py", "b c"), of("a.py", "b", "c"), "the command: here a.py ..., there a.py ... ..."),
        (of("a.py", same_command="script"), of("b.py", same_command="script"), "the command: here a.py, there b.py"),
        (of("a.py"), of("a.py", same_command="no"), "--rdzv-conf same_command: here arguments, there no"),
    ],
)
def test_commands_that_differ_are_shown_without_their_values(mine, theirs, said):
    with pytest.raises(SettingsDiffer) as raised:
        compare(mine, json.dumps(theirs).encode(), "here:1")
    assert str(raised.value).endswith(f": {said}")
    assert ("same_command=script" in raised.value.remedy) == ("the command" in said)


def test_no_value_of_a_command_is_published():
    secrets = ["--token=s3cret", "--password", "s3cret", "-ps3cret", "s3cret=", "--", "--=s3cret", "-1", "-"]
    published = json.dumps(of("/home/s3cret/train.py", *secrets))
    assert "s3cret" not in published
    assert '"train.py --token --password ' in published
    assert len(of("train.py", *["--an-option"] * 100)["command"]) < 250


def test_workers_per_node_differ_only_where_torch_counts_them(monkeypatch):
    other = Request("memory", "job", "here:1", 1, 2, 8)
    compare(settings(), json.dumps(settings(other)).encode(), "here:1")
    monkeypatch.setenv("TORCH_ELASTIC_WORKER_IDENTICAL", "1")
    with pytest.raises(SettingsDiffer, match="--nproc-per-node: here 1, there 8"):
        compare(settings(), json.dumps(settings(other)).encode(), "here:1")


@pytest.mark.parametrize("text", [b"", b"[]", b"\x00", b'{"settings": {}}', b'{"settings": 1, "by": "x"}'])
def test_settings_of_another_program(text):
    with pytest.raises(SettingsDiffer, match="not this version of rdzv-plugins"):
        compare(settings(), text, "here:1")


def test_another_torch_is_a_warning(caplog):
    compare(settings(), json.dumps({**settings(), "torch": "1.0"}).encode(), "here:1")
    assert "has torch 1.0" in caplog.text


def places(*machines: str, given: int | None = None) -> dict[str, Assignment]:
    return {
        str(rank): Assignment(1, rank, len(machines), "", f"host-{name}", name, pid=rank, node_rank=given)
        for rank, name in enumerate(machines)
    }


def test_two_agents_on_one_machine_are_told_of_once(caplog):
    neighbours = Neighbours(allowed=False)
    neighbours.check(places("m", "n"))
    assert not caplog.records
    for _ in range(2):
        neighbours.check(places("m", "n", "m"))
    assert [record.getMessage().split(". ")[0] for record in caplog.records] == [
        "nodes 0 (pid 0) and 2 (pid 2) are agents on the same machine (host-m)"
    ]


def test_two_agents_on_one_machine_that_are_meant(caplog):
    Neighbours(allowed=True).check(places("m", "m"))
    Neighbours(allowed=False).check(places("m", "m", given=0))
    assert not caplog.records


class Clock(Runtime):
    """The time that reports read."""

    seconds = 100.0

    def monotonic(self) -> float:  # type: ignore[override]
        return self.seconds


def test_log_gets_a_line_every_ten_seconds(monkeypatch, caplog):
    clock = Clock()
    with caplog.at_level(logging.INFO):
        waiting = Reports(lambda: "for b", live=True, runtime=clock)
        for _ in range(25):
            waiting.say()
            clock.seconds += 1
        waiting.end()
    assert caplog.messages == ["waiting: for b (10 s)", "waiting: for b (20 s)"]


def test_new_kind_of_waiting_is_said_once_it_has_lasted_a_second(monkeypatch, caplog):
    clock = Clock()
    with caplog.at_level(logging.INFO):
        waiting = Reports(lambda: "as a spare", live=False, runtime=clock)
        clock.seconds += 2
        waiting.say("spare")
        assert waiting.next_at == clock.seconds + 1
        clock.seconds = waiting.next_at
        waiting.say("spare")
        waiting.say("spare")
    assert caplog.messages == ["waiting: as a spare (3 s)"]


def test_terminal_gets_one_line_that_goes_away(monkeypatch, caplog):
    clock = Clock()
    wanted = "\rwaiting: for a and b (1 s)\rwaiting: for b (2 s)      \r" + " " * len("waiting: for b (2 s)") + "\r"
    ours, theirs = pty.openpty()
    try:
        with os.fdopen(theirs, "w") as terminal, caplog.at_level(logging.INFO):
            monkeypatch.setattr(sys, "stderr", terminal)
            texts = iter(["for a and b", "for b"])
            waiting = Reports(lambda: next(texts), live=True, runtime=clock)
            waiting.say()
            for _ in range(2):
                clock.seconds = waiting.next_at
                waiting.say()
            waiting.end()
            monkeypatch.undo()
            shown = b""
            while len(shown) < len(wanted):
                shown += os.read(ours, 4096)
    finally:
        os.close(ours)
    assert shown.decode() == wanted
    assert not caplog.records
