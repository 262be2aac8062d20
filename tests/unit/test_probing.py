"""A sign of life of every node of a round, and when all have given one."""

from __future__ import annotations

from kits.unit.membership_steps import node

from rdzv_plugins.elastic.keys import Member, Probe
from rdzv_plugins.elastic.leading.probing import Probing


class Asked:
    """A leader's probing, and the nodes of round 4."""

    def __init__(self, *names: str, newest: Probe | None = None) -> None:
        self.probing = Probing(newest)
        self.members = {name: node(name) for name in names}

    def say(self, name: str, **fields: int) -> Probe | None:
        self.members[name] = node(name, **fields)
        return self.probing.changed(self.members[name], self.working, 4)

    def working(self) -> list[Member]:
        return list(self.members.values())

    def lose(self, name: str) -> Probe | None:
        self.members.pop(name, None)
        return self.probing.gone(name)


def test_answered_when_the_last_has_answered():
    asked = Asked("a", "b", "c")
    assert asked.say("a", probe=1) == Probe(1, 4)
    assert asked.say("a", probe=1, alive=1) is None
    assert asked.say("b", alive=1) is None
    assert asked.say("b", alive=1) is None
    assert asked.say("c", alive=1) == Probe(1, 4, answered=True)
    assert asked.say("c", alive=1) is None


def test_nobody_waits_for_a_lost_node():
    asked = Asked("a", "b")
    asked.say("a", probe=1)
    asked.say("a", probe=1, alive=1)
    assert asked.lose("b") == Probe(1, 4, answered=True)
    assert asked.lose("b") is None


def test_old_answer_does_not_count():
    asked = Asked("a", "b")
    for number in (1, 2):
        assert asked.say("a", probe=number) == Probe(number, 4)
        assert asked.say("a", probe=number, alive=number) is None
        assert asked.say("b", alive=number - 1) is None
        assert asked.say("b", alive=number) == Probe(number, 4, answered=True)


def test_second_question_of_the_same_number_is_the_same_probe():
    asked = Asked("a", "b")
    asked.say("a", probe=1)
    assert asked.say("b", probe=1) is None


def test_no_probe_when_the_round_is_over():
    asked = Asked()
    assert asked.probing.changed(node("a", probe=1), list, 4) is None


def test_probe_that_another_leader_has_begun_is_begun_again():
    asked = Asked("a", "b", newest=Probe(3, 4))
    assert asked.say("a", probe=3, alive=3) == Probe(3, 4)
    assert asked.say("b", alive=3) == Probe(3, 4, answered=True)


def test_probe_that_was_answered_is_not():
    asked = Asked("a", "b", newest=Probe(3, 4, answered=True))
    assert asked.say("a", probe=3, alive=3) is None
    assert asked.say("a", probe=4, alive=3) == Probe(4, 4)


def test_answered_at_once_when_all_have_answered_already():
    asked = Asked("a", newest=Probe(2, 4))
    assert asked.say("a", probe=2, alive=2) == Probe(2, 4, answered=True)
