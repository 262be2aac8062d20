"""Leaving last: who serves something that others use waits until they have gone."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rdzv_plugins.coordination import Event, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.elastic.keys import Member, decode


def wait_until_alone(session: Session, me: Member, linger: float) -> bool:
    """Wait for the other members to leave, at most ``linger`` seconds; True once they have.

    The node that serves the endpoint waits until all have gone; another one until all have said that they go, before
    they wait themselves: they need no store any more.
    """
    others: set[str] = set()
    alone = threading.Event()

    def seen(events: Sequence[Event]) -> None:
        for event in events:
            node = event.key.removeprefix(keys.MEMBERS)
            if node == me.node_id:
                continue
            other = None if event.value is None else decode(Member, event.value)
            needs = other is not None and (me.serves or not other.leaving)
            (others.add if needs else others.discard)(node)
        (alone.clear if others else alone.set)()

    held, revision = session.list(keys.MEMBERS, timeout=patience(session))
    seen([Event(kv.key, kv.value, kv.revision) for kv in held])
    watch = session.watch(keys.MEMBERS, seen, after=revision, timeout=patience(session))
    try:
        return alone.wait(linger)
    finally:
        watch.cancel()
