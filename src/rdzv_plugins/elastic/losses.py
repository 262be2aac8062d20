"""Was a node lost? A worker has failed, or this node's proxy has lost the workers' store of its round.

A node that is cut off from that store tells the others, which form a new round.
"""

from __future__ import annotations

import logging

from rdzv_plugins.elastic.insisting import LEAST_S, Background
from rdzv_plugins.elastic.own_round import NodeContext
from rdzv_plugins.elastic.view import raise_if_ended
from rdzv_plugins.errors import ConnectionLost

logger = logging.getLogger(__name__)


_NEWS_S = 2.0
"""How long to wait for news that the round is over, in seconds, while the service answers."""


class Losses:
    """``peer_lost`` is called by one thread, ``cut_off`` by any."""

    def __init__(self, node: NodeContext, in_background: Background) -> None:
        self._request, self._ttl, self._view, self._contact = node.request, node.options.ttl, node.view, node.contact
        self._self, self._round, self._store, self._runtime = node.myself, node.round, node.store, node.runtime
        self._in_background = in_background

    def peer_lost(self) -> bool:
        """Wait for the answer, at most twice the time to live.

        A node that gives no sign of life is lost when its session ends. That happens within its time to live; twice
        that allows for a service that elects a new leader of its own in between. While the service does not answer,
        nobody can tell; it is then asked again until the outage has lasted too long: this waits for no more of it.
        """
        if self._round.place is None or self._round.place.world == 1:
            return False
        if (lost := self._ask_all()) is None:
            logger.info("a worker has failed, and the rendezvous does not answer: waiting to hear why")
        while lost is None:
            lost = self._ask_all()
        return lost

    def _ask_all(self) -> bool | None:
        """Whether a node has been lost. None: the service has not answered, or has forgotten what it was asked."""
        self._wait_confirmed()
        session = self._contact.session
        outage = self._contact.outage
        deadline = self._runtime.monotonic() + 2 * (session.ttl if session is not None else self._ttl) + 1
        asked = self._view.probe.number + 1
        if not self._round.must_rejoin():  # otherwise this is an answer; do not ask another session's nodes
            left = deadline - self._runtime.monotonic()
            self._self.say_once(min(left, max(LEAST_S, outage.left)) if outage.lasts else left, probe=asked)
        while True:
            seen = self._view.version
            self._raise_if_ended()
            if self._round.must_rejoin():
                declared = self._view.round  # another place may still know an earlier one, which is no answer
                asked_for = declared.number == self._round.number and declared.cause == "asked"
                return not asked_for or self._round.has_new_session
            if self._round.is_unconfirmed or self._contact.session not in (session, None):
                return None
            probe = self._view.probe
            answered = probe.answered and probe.number >= asked
            if outage.lasts:  # it ends where it ends, whoever waits; a last try to reach the service may end later
                deadline = min(deadline, self._runtime.monotonic() + max(LEAST_S, outage.left))
            if answered or self._runtime.monotonic() >= deadline:
                if not answered and self._contact.is_out:
                    return None
                return self.is_cut_off
            self._view.wait(seen, deadline - self._runtime.monotonic())

    def _wait_confirmed(self) -> None:
        """Wait until the round is confirmed.

        A service without memory knows none of its nodes before all have come back.
        """
        while True:
            seen = self._view.version
            self._raise_if_ended()
            if not self._round.is_unconfirmed or self._round.must_rejoin():
                return
            self._view.wait(seen, _NEWS_S)

    def _raise_if_ended(self) -> None:
        raise_if_ended(self._view, self._contact.problem, self._request)
        if self._contact.is_closed:
            raise ConnectionLost("this node has left the rendezvous")

    @property
    def is_cut_off(self) -> bool:
        """Whether this node's workers have lost a store they need, which its proxy is about to report."""
        return self._needs_store() and self._store.is_cut_off()

    def cut_off(self, round_: int, why: str) -> None:
        """Tell the others that the proxy has lost the store of ``round_`` and its workers.

        Called on the proxy's thread.
        """
        if round_ != self._round.number or self._round.must_rejoin():
            return  # as intended
        reason = f"is cut off from the workers' store: {why}"
        if not self._needs_store():
            logger.debug("this node, or another one, is done, and %s", reason)
        elif self._self.say_cut_off(round_, reason):
            self._in_background("cut off", lambda: self._report(round_, why))

    def _needs_store(self) -> bool:
        """Whether its workers still need the store: no node of the round is done, and the job has not ended."""
        me, view, round_ = self._self.me, self._view, self._round.number
        return not me.leaving and round_ not in (me.done, view.finishing.round) and view.ended is None

    def _report(self, round_: int, why: str) -> None:
        """Report it, unless the round was already over and this node had not heard of that yet."""
        deadline = self._runtime.monotonic() + _NEWS_S
        while self._runtime.monotonic() < deadline:
            seen, declared = self._view.version, self._view.round
            if declared.number > round_ or declared.state == "over":
                if why not in declared.reason:
                    return
                break
            self._view.wait(seen, deadline - self._runtime.monotonic())
        logger.warning(
            "this node is cut off from the workers' store of round %d: %s; its workers are stopped and join a new one",
            round_,
            why,
        )
