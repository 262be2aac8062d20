"""What a node has been told, in whatever batches the news comes."""

from __future__ import annotations

from rdzv_plugins.coordination import Event
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Round, encode
from rdzv_plugins.elastic.view import View


def test_why_a_round_is_over_is_known_though_the_next_begins_in_the_same_batch():
    view = View(lambda: None)
    over = Round(number=2, state="over", reason="node 1 was lost")
    news = [over, Round(number=3, state="complete")]
    view.feed([Event(keys.ROUND, encode(each), revision) for revision, each in enumerate(news, 1)])
    assert view.round.number == 3
    assert view.over == over
