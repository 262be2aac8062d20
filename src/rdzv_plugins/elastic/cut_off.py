"""A node's proxy has lost the workers' store of its round: the others are told, and form a new round."""

from __future__ import annotations

import logging

from rdzv_plugins.elastic.background import Background
from rdzv_plugins.elastic.joining import Joining
from rdzv_plugins.elastic.myself import Myself
from rdzv_plugins.elastic.round_store import RoundStore
from rdzv_plugins.elastic.view import View
from rdzv_plugins.runtime import Runtime

logger = logging.getLogger(__name__)

_NEWS_S = 2.0
"""How long to wait for news that the round is over, in seconds, while the service answers."""


class CutOff:
    """Tells the others that this node's proxy has lost the workers' store. Callable from any thread."""

    def __init__(
        self,
        view: View,
        joining: Joining,
        myself: Myself,
        store: RoundStore,
        in_background: Background,
        runtime: Runtime,
    ) -> None:
        self._view, self._joining, self._self, self._store = view, joining, myself, store
        self._in_background, self._runtime = in_background, runtime

    @property
    def holds(self) -> bool:
        """Whether this node's workers have lost a store they need, which its proxy is about to report."""
        return self._needs_store() and self._store.is_cut_off()

    def tell(self, round_: int, why: str) -> None:
        """Tell the others that the proxy has lost the store of ``round_`` and its workers.

        Called on the proxy's thread.
        """
        if round_ != self._joining.round or self._joining.must_rejoin():
            return  # as intended
        reason = f"is cut off from the workers' store: {why}"
        if not self._needs_store():
            logger.debug("this node, or another one, is done, and %s", reason)
        elif self._self.say_cut_off(round_, reason):
            self._in_background("cut off", lambda: self._report(round_, why))

    def _needs_store(self) -> bool:
        """Whether its workers still need the store: no node of the round is done, and the job has not ended."""
        me, view, round_ = self._self.me, self._view, self._joining.round
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
