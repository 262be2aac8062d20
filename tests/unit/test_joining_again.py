"""Whether what has failed in a round failed because the round is over."""

from unittest.mock import Mock

import pytest

from rdzv_plugins.rounds.joining_again import must_join_again


@pytest.mark.parametrize(
    ("over", "lost", "again", "waits"),
    [
        ([True], False, True, False),
        ([False], True, True, True),
        ([False, True], False, True, True),  # another asks for a new round meanwhile
        ([False, False], False, False, True),
    ],
)
def test_a_round_is_over_and_nothing_is_waited_for_once_that_is_known(over, lost, again, waits):
    handler = Mock()
    handler.must_rejoin.side_effect, handler.peer_lost.return_value = over, lost
    assert must_join_again(handler) is again
    assert handler.peer_lost.called is waits
