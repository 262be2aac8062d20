"""How a node leaves the job: what it tells the others, and whom it stays for.

A node that serves something others use leaves last: it waits until they no longer need it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rdzv_plugins import errors
from rdzv_plugins.coordination import Event, KeyValue, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.elastic.keys import Finishing, Member, encode, readable
from rdzv_plugins.elastic.link import Link
from rdzv_plugins.elastic.own_round import NodeContext
from rdzv_plugins.elastic.view import raise_if_ended
from rdzv_plugins.interfaces import Outcome
from rdzv_plugins.rounds.ends import stay_while, to_json
from rdzv_plugins.runtime import Runtime

if TYPE_CHECKING:
    from rdzv_plugins.elastic.failover import Carrying

logger = logging.getLogger(__name__)

_BEFORE_WORKERS_S = 2.0
"""How much of the time in which workers have to end may be spent on telling the others, in seconds."""


class Leaving:
    """Takes this node out of the job. Called by one thread; ``end`` by any."""

    def __init__(self, node: NodeContext, link: Link, carrying: Carrying | None) -> None:
        self._request, self._linger, self._view, self._link = node.request, node.options.linger, node.view, link
        self._contact, self._self, self._round, self._store = node.contact, node.myself, node.round, node.store
        self._runtime, self._moves = node.runtime, carrying is not None

    def end(self, outcome: Outcome) -> None:
        """End the job for all nodes, unless it has ended already."""
        session = self._contact.session
        if session is not None:
            session.create(keys.END, to_json(outcome).encode(), timeout=patience(session))

    def note(self, reason: str) -> None:
        """This node is about to stop its workers and leave: the others' will fail, and that is not their fault."""
        self._self.say_once(_BEFORE_WORKERS_S, leaving="lost", reason=reason)

    def stay(self) -> None:
        """See ``RendezvousHandler``. Returns at once if this node serves nothing."""
        if not (self._link.hosts_service or self._serves_others()):
            return
        try:
            while (session := self._contact.wait_session()) is not None:
                self._say(session, Outcome("done"))
                with Others(session, self._self.me.node_id, self._needed_by, self._runtime) as left:
                    go_on = functools.partial(self._goes_on, session)
                    stay_while(go_on, left.names, self._runtime, every=0.0, gone=left.wait_gone)
                if session is self._contact.session:
                    return
        except (errors.ConnectionLost, TimeoutError) as error:
            logger.debug("could not wait for the other nodes: %s", error)

    def working_peers(self) -> Sequence[str]:
        session = self._contact.session
        if not self._round.number:
            return ()
        try:
            if session is not None:
                held, _ = session.list(keys.MEMBERS, timeout=patience(session))
                others = (each for each in readable(Member, held) if each.node_id != self._self.me.node_id)
                return [each.name for each in others if each.reached == self._round.number and _works(each)]
        except (TimeoutError, errors.RdzvError) as error:
            logger.debug("could not ask who works: %s", error)
        # an outage says nothing of the others, and ends by itself
        return ["nodes that nobody can ask for now"]

    def leave(self, outcome: Outcome) -> None:
        """Tell the others. A node that serves something stays until they have left, at most ``linger`` seconds.

        If it serves the endpoint that is until all have gone. Otherwise it is until all have said that they are
        leaving, which they do before they wait themselves: they no longer need a store.
        """
        session = self._contact.session
        if session is None or self._contact.problem is not None:  # it would not be heard
            return
        try:
            ends_all = self._link.hosts_service and not self._moves  # else another place serves from now on
            if outcome.end == "failed" or (outcome.end == "lost" and ends_all):
                self.end(outcome)
            self._say(session, outcome)
            if outcome.end == "lost":
                self._wait_declared()
            done = outcome.end == "done"
            if (self._link.hosts_service and (done or ends_all)) or (done and self._serves_others()):
                me = self._self.me
                with Others(session, me.node_id, lambda other: me.serves or not other.leaving, self._runtime) as left:
                    left.wait_gone(self._linger)
        except (errors.ConnectionLost, TimeoutError) as error:
            logger.debug("could not tell the other nodes how this one ended: %s", error)

    def _say(self, session: Session, outcome: Outcome) -> None:
        if self._self.me.leaving == outcome.end:
            return  # already said
        if outcome.end == "done" and self._round.number:
            finishing = Finishing(self._round.number, self._self.me.name)
            try:
                session.put({keys.FINISHING: encode(finishing)}, timeout=patience(session))
            except (TimeoutError, errors.RdzvError) as error:  # it is done all the same
                logger.debug("could not tell the other nodes that this one is done: %s", error)
        quick = outcome.end == "lost"  # nobody waits to hear that
        self._self.say_once(
            _BEFORE_WORKERS_S if quick else patience(session), leaving=outcome.end, reason=outcome.reason
        )

    def _wait_declared(self) -> None:
        """If leading, declare the round over before leaving: a successor would not see why this node has gone."""
        deadline = self._runtime.monotonic() + _BEFORE_WORKERS_S
        while self._link.leads and self._runtime.monotonic() < deadline:
            seen, declared = self._view.version, self._view.round
            if declared.number != self._round.number or declared.state == "over":
                return
            self._view.wait(seen, deadline - self._runtime.monotonic())

    def _needed_by(self, other: Member) -> bool:
        """Whether ``other`` needs this node: the endpoint is needed by all, a round's store by that round's nodes."""
        return _works(other) and (self._link.hosts_service or other.reached == self._round.number)

    def _goes_on(self, session: Session) -> bool:
        """Whether this node stays: it is of use while its session lives. Raises the reason if the job has failed."""
        raise_if_ended(self._view, None, self._request)
        over = self._view.round.number > self._round.number  # then only the endpoint is needed
        return session is self._contact.session and (self._link.hosts_service or not over)

    def _serves_others(self) -> bool:
        """Whether this node serves others: the workers' store, or the proxies of other nodes."""
        place = self._round.place
        return place is not None and place.world > 1 and (place.rank == 0 or self._store.is_parent)


def _works(member: Member) -> bool:
    """Whether a member is not known to be done: it has workers, or is about to have some."""
    return not member.leaving and not member.outside and (member.done == 0 or member.done != member.reached)


class Others:
    """A context manager: which other members ``holds`` is true of, according to the watch. Thread-safe."""

    def __init__(self, session: Session, node_id: str, holds: Callable[[Member], bool], runtime: Runtime) -> None:
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
