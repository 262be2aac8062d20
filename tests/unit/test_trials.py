"""Trials as the leader has them: nodes are tried before a round, and whoever does not answer holds nobody up."""

from __future__ import annotations

from typing import Any

import pytest
from kits.unit.membership_steps import Leader, node

from rdzv_plugins.elastic.keys import Member
from rdzv_plugins.elastic.leading.membership import Decisions
from rdzv_plugins.elastic.trial_keys import Checked, Task, Tried, Way
from rdzv_plugins.elastic.trial_rules import TrialRules

NAMES = "abcdef"


class Job:
    """A leader, and nodes that measure what they are told; ``network`` says what they find, by pair."""

    def __init__(self, low: int, high: int, **rules: Any) -> None:
        self.leader = Leader(low, high, trial=TrialRules(**rules), last_call=0)
        self.network: dict[frozenset[str], dict[str, Any]] = {}
        self.tasks: dict[str, Task] = {}
        self.order: list[str] = []
        self.silent: set[str] = set()
        self.notices: list[str] = []
        self.stages: list[tuple[str, int]] = []

    def take(self, out: Decisions) -> None:
        self.tasks |= out.tasks
        self.notices += out.notices
        if out.tasks:
            self.order = [name for name, member in self.leader.members.items()] if len(out.tasks) > 1 else self.order
            self.stages.append((next(iter(out.tasks.values())).stage, len(out.tasks)))

    def come(self, *names: str, **fields: Any) -> None:
        members: list[Member] = [node(name, measures=4000 + ord(name), **fields) for name in names]
        self.take(self.leader.hear(*members))

    def answer(self, name: str) -> None:
        task = self.tasks.pop(name)
        ways = []
        for partner in {partner.index: partner for partner in (*task.dials, *task.tests)}.values():
            other = chr(partner.port - 4000)
            found = {"latency_us": 100, "rate": 400 * 2**20} | self.network.get(frozenset((name, other)), {})
            ways.append(Way(partner.index, **found))
        self.take(self.leader.say(name, tried=Tried(task.trial, task.stage, tuple(ways), 500)))

    def answer_all(self) -> None:
        while ready := [name for name in self.tasks if name not in self.silent and name in self.leader.members]:
            for name in ready:
                self.answer(name)

    def break_(self, one: str, *others: str) -> None:
        for other in others:
            self.network[frozenset((one, other))] = {"problem": "no answer within 2 s", "latency_us": 0, "rate": 0}

    def ranks(self) -> set[str]:
        """Of the round that begins when all have answered."""
        self.answer_all()
        self.leader.complete()
        return set(self.leader.ranks())


def test_no_round_begins_before_all_have_answered():
    tests = Job(3, 3)
    tests.come("a", "b")
    assert tests.tasks == {}
    tests.come("c")
    assert set(tests.tasks) == {"a", "b", "c"}
    tests.answer("a")
    tests.answer("b")
    assert tests.leader.assigned == {}
    tests.answer("c")
    assert tests.ranks() == {"a", "b", "c"}
    assert tests.stages == [("measure", 3)]
    assert tests.notices == []


def test_a_broken_way_is_measured_again_and_one_of_the_two_is_left_out():
    tests = Job(3, 4)
    tests.break_("b", "d")
    tests.come("a", "b", "c", "d")
    tests.answer_all()
    assert [stage for stage, _ in tests.stages] == ["measure", "confirm"]
    assert tests.stages[1][1] == 2, "only those two"
    assert tests.ranks() == {"a", "b", "c"}
    (notice,) = tests.notices
    assert "host-b (pid 7) and host-d (pid 7) have no way to each other: no answer within 2 s" in notice
    assert "host-d (pid 7) is left out until the round is over" in notice


def test_what_is_well_the_second_time_is_forgotten():
    tests = Job(3, 4)
    tests.break_("b", "d")
    tests.come("a", "b", "c", "d")
    for name in "abcd":
        tests.answer(name)
    tests.network.clear()
    assert tests.ranks() == {"a", "b", "c", "d"}
    assert tests.notices == []


def test_a_broken_way_without_a_spare_ends_the_job():
    tests = Job(2, 2)
    tests.break_("a", "b")
    tests.come("a", "b")
    tests.answer_all()
    declared = tests.leader.round
    assert (declared.state, declared.unfit) == ("failed", True)
    assert "host-a (pid 7) and host-b (pid 7) have no way to each other" in declared.reason
    tests.come("c")
    assert tests.tasks == {}


def test_a_slow_node_without_a_spare_stays_and_is_named():
    tests = Job(4, 4)
    for other in "abd":
        tests.network[frozenset(("c", other))] = {"rate": 2**20}
    tests.come("a", "b", "c", "d")
    assert tests.ranks() == {"a", "b", "c", "d"}
    (notice,) = tests.notices
    assert notice == (
        "host-c (pid 7) is slow: throughput 1.0 MiB/s, where 400.0 MiB/s is usual here; there is no spare for it"
    )


@pytest.mark.parametrize(
    ("way", "others"),
    [({"rate": 2**20}, 3), ({"latency_us": 40_000}, 3), ({"rate": 2**20, "latency_us": 40_000}, 2)],
    ids=["slow", "late", "both"],
)
def test_a_node_is_tested_again_with_a_few_others_and_fewer_if_each_test_takes_longer(way, others):
    tests = Job(7, 8)
    names = "abcdefgh"
    tests.network = {frozenset(("d", other)): way for other in names if other != "d"}
    tests.come(*names)
    while not tests.stages or tests.stages[-1][0] == "measure":
        tests.answer(next(name for name in tests.tasks))
    asked = {name: task for name, task in tests.tasks.items() if task.tests}
    pairs = {(name, partner.index) for name, task in asked.items() for partner in task.tests}
    assert len(pairs) == others
    assert tests.ranks() == set(names) - {"d"}


def test_what_a_node_says_of_itself_counts():
    tests = Job(1, 2)
    tests.come("a")
    tests.come("b", checks=(Checked("my device", "broken", "it is on fire"),))
    assert tests.ranks() == {"a"}


def test_whoever_is_left_of_each_domain_waits_if_no_round_can_be_formed_of_them():
    tests = Job(2, 4)
    tests.leader = Leader(2, 4, trial=TrialRules(), last_call=0, min_per_domain=2)
    fire = (Checked("my device", "broken", "it is on fire"),)
    for name, domain in zip("abcd", "rrss", strict=True):
        tests.come(name, domain=domain, checks=fire if name in "ac" else ())
    tests.answer_all()
    assert (tests.leader.round.state, tests.leader.assigned) == ("none", {})
    assert len({notice for notice in tests.notices if "it is on fire" in notice}) == 2
    tests.come("e", domain="s")
    assert tests.ranks() == {"d", "e"}


def test_who_was_left_out_is_not_welcome_before_the_round_is_over_and_is_tried_again_then():
    tests = Job(2, 3)
    tests.break_("a", "c")
    tests.break_("b", "c")
    tests.come("a", "b", "c")
    assert tests.ranks() == {"a", "b"}
    tests.take(tests.leader.say("c", reached=1, outside=True))
    assert tests.leader.state == (1, "complete")
    tests.network.clear()
    tests.take(tests.leader.say("b", after=1, reason="a worker failed"))
    assert tests.leader.state == (1, "over")
    tests.take(tests.leader.say("a", after=1))
    tests.answer_all()
    tests.leader.complete()
    assert tests.leader.state == (2, "complete")
    assert tests.ranks() == {"a", "b", "c"}


def test_a_node_that_nobody_reaches_is_not_waited_for():
    tests = Job(3, 4)
    tests.silent.add("d")
    tests.break_("d", "a", "b", "c")
    tests.come("a", "b", "c", "d")
    tests.answer_all()
    tests.take(tests.leader.wait(2))
    assert tests.ranks() == {"a", "b", "c"}
    assert "host-d (pid 7) is left out for now: it has not answered in its preflight" in tests.notices


def test_a_node_that_does_not_answer_holds_the_others_up_for_a_limited_time():
    tests = Job(3, 4, within=30)
    tests.silent.add("a")
    tests.come("a", "b", "c", "d")
    tests.answer_all()
    assert tests.leader.assigned == {}
    wait = tests.leader.machine.deadline() - tests.leader.now
    assert 0 < wait <= 30
    tests.take(tests.leader.wait(wait))
    assert tests.ranks() == {"b", "c", "d"}


def test_silence_of_all_is_limited_too_and_the_job_waits_for_enough():
    tests = Job(2, 2, within=30)
    tests.silent.update("ab")
    tests.come("a", "b")
    tests.take(tests.leader.wait(30))
    assert tests.leader.round.state == "none"
    assert "host-a (pid 7) is left out for now: it has not answered in its preflight" in tests.notices


def test_a_node_that_is_lost_meanwhile_is_not_waited_for():
    tests = Job(2, 3)
    tests.come("a", "b", "c")
    tests.answer("a")
    tests.answer("b")
    tests.take(tests.leader.lose("c"))
    assert tests.ranks() == {"a", "b"}
    assert tests.notices == []


def test_an_answer_of_another_trial_or_of_other_nodes_counts_for_nothing():
    tests = Job(2, 3)
    tests.come("a", "b", "c")
    task = tests.tasks["c"]
    tests.take(tests.leader.say("c", tried=Tried("another", "measure")))
    tests.take(tests.leader.say("c", tried=Tried(task.trial, "confirm")))
    lies = (Way(0, problem="a lie"), Way(1, problem="a lie"), Way(77, problem="a lie"))
    tests.take(tests.leader.say("c", tried=Tried(task.trial, "measure", lies)))
    del tests.tasks["c"]
    assert tests.ranks() == {"a", "b", "c"}


def test_who_comes_meanwhile_is_tried_with_all_the_others_once_more():
    tests = Job(2, 4)
    tests.come("a", "b")
    tests.come("c")
    tests.answer_all()
    assert [count for _, count in tests.stages] == [2, 3]
    assert tests.ranks() == {"a", "b", "c"}


def test_each_node_is_asked_once_in_a_stage_and_a_pair_by_the_first_of_the_two():
    tests = Job(6, 6)
    tests.come(*NAMES)
    asked = [(task.me, partner.index) for task in tests.tasks.values() for partner in task.dials]
    assert sorted(asked) == [(one, other) for one in range(6) for other in range(one + 1, 6)]
    assert len({task.trial for task in tests.tasks.values()}) == 1


def test_no_ways_are_measured_where_that_was_not_asked_for():
    tests = Job(2, 2, network=False)
    tests.come("a", "b")
    assert all(not task.dials and not task.tests for task in tests.tasks.values())
    tests.answer_all()
    tests.leader.complete()
