"""What a node has been told, in whatever batches the news comes."""

from __future__ import annotations

from rdzv_plugins.coordination import Event
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Round, encode
from rdzv_plugins.elastic.view import View
from rdzv_plugins.runtime import SYSTEM


def test_why_a_round_is_over_is_known_though_the_next_begins_in_the_same_batch():
    view = View(lambda: None, SYSTEM)
    over = Round(number=2, state="over", reason="node 1 was lost")
    news = [over, Round(number=3, state="complete")]
    view.begin()([Event(keys.ROUND, encode(each), revision) for revision, each in enumerate(news, 1)])
    assert view.round.number == 3
    assert view.over == over


def test_what_an_earlier_sessions_watches_tell_late_is_left_out():
    view = View(lambda: None, SYSTEM)
    earlier, over = view.begin(), Round(number=2, state="over", reason="node 1 was lost")
    view.begin()([Event(keys.ROUND, encode(over), 2)])
    seen = view.version
    earlier([Event(keys.ROUND, encode(Round(number=2, state="complete")), 1)])
    assert (view.round, view.version) == (over, seen)
