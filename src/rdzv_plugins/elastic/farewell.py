"""Leaving last: a node that serves something others use waits until they no longer need it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rdzv_plugins.coordination import Event, KeyValue, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.elastic.keys import Member, readable
from rdzv_plugins.rounds.staying import stay_while
from rdzv_plugins.runtime import Runtime

Holds = Callable[[Member], bool]


def works(member: Member) -> bool:
    """Whether a member is not known to be done: it has workers, or is about to have some."""
    return not member.leaving and not member.outside and (member.done == 0 or member.done != member.reached)


def others(session: Session, node_id: str) -> list[Member]:
    """The other living members. Makes one request."""
    held, _ = session.list(keys.MEMBERS, timeout=patience(session))
    return [member for member in readable(Member, held) if member.node_id != node_id]


class Others:
    """A context manager: which other members ``holds`` is true of, according to the watch. Thread-safe."""

    def __init__(self, session: Session, node_id: str, holds: Holds, runtime: Runtime) -> None:
        self._session, self._node_id, self._holds = session, node_id, holds
        self._held: dict[str, str] = {}
        self._none = runtime.Event()

    def __enter__(self) -> Others:
        timeout = patience(self._session)
        self._watch = keys.list_and_watch(
            self._session, keys.MEMBERS, self._begin, self._seen, lambda request: request(timeout)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.cancel()

    @property
    def names(self) -> list[str]:
        """The names of these members, for messages."""
        return sorted(self._held.copy().values())

    def wait_gone(self, timeout: float) -> bool:
        """Wait until there are none left, at most ``timeout`` seconds; True if so."""
        return self._none.wait(timeout)

    def _begin(self, held: Sequence[KeyValue]) -> None:
        self._held.clear()
        self._seen([Event(kv.key, kv.value, kv.revision) for kv in held])

    def _seen(self, events: Sequence[Event]) -> None:
        for event in events:
            node = event.key.removeprefix(keys.MEMBERS)
            held = [] if event.value is None else [KeyValue(event.key, event.value, event.revision)]
            other = next(readable(Member, held), None)
            if node != self._node_id and other is not None and self._holds(other):
                self._held[node] = other.name
            else:
                self._held.pop(node, None)
        (self._none.clear if self._held else self._none.set)()


def stay(session: Session, node_id: str, holds: Holds, go_on: Callable[[], bool], runtime: Runtime) -> None:
    """Wait until ``holds`` is true of no other member or ``go_on`` returns false. Logs who is waited for.

    ``go_on`` is called every second, on the calling thread; an exception from it ends the wait.
    """
    with Others(session, node_id, holds, runtime) as left:
        stay_while(go_on, lambda: left.names, runtime, every=0.0, gone=left.wait_gone)


def wait_until_alone(session: Session, me: Member, linger: float, runtime: Runtime) -> bool:
    """Wait for the other members to leave, at most ``linger`` seconds; True once they have.

    The node that serves the endpoint waits until all have gone. Any other waits until all have said that they are
    leaving, which they do before they wait themselves: they no longer need a store.
    """
    with Others(session, me.node_id, lambda other: me.serves or not other.leaving, runtime) as left:
        return left.wait_gone(linger)
