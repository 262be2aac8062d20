"""Whether what has failed in a round failed because the round is over."""

import pytest

from rdzv_plugins.rounds.joining_again import must_join_again


class Handler:
    """Of a node that learns something while it waits to hear whether a node was lost."""

    def __init__(self, *, over: bool = False, lost: bool = False, asked_meanwhile: bool = False) -> None:
        self.over, self.lost, self.asked_meanwhile = over, lost, asked_meanwhile
        self.waited = False

    def must_rejoin(self) -> bool:
        return self.over

    def peer_lost(self) -> bool:
        self.waited = True
        self.over = self.over or self.asked_meanwhile
        return self.lost


@pytest.mark.parametrize("given", [{"over": True}, {"lost": True}, {"asked_meanwhile": True}])
def test_a_round_that_is_over(given):
    assert must_join_again(Handler(**given))


def test_nothing_is_waited_for_once_it_is_known():
    handler = Handler(over=True)
    assert must_join_again(handler)
    assert not handler.waited


def test_a_failure_of_this_node_alone():
    assert not must_join_again(Handler())
