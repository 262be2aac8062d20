"""The wait for the workers of all nodes, once those of this node have succeeded.

The keys are those of torch's agent (``rounds/exit_barrier``), so nodes of plain torchrun may wait there, too. Unlike
torch's, this barrier names the nodes it waits for, ends on a failure elsewhere, keeps waiting past its time-out for
nodes that are known to live, and hears when another node has to run again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rdzv_launcher.run.agent.events import BarrierOver, MustRunAgain
from rdzv_launcher.run.agent.round_store import appear, is_lost
from rdzv_plugins.handler import must_join_again
from rdzv_plugins.interfaces import RendezvousHandler
from rdzv_plugins.plain_text import some
from rdzv_plugins.rounds import exit_barrier as keys
from rdzv_plugins.runtime import Runtime
from rdzv_plugins.store import Store
from rdzv_plugins.timing import EVERY_S, Reporting

logger = logging.getLogger(__name__)

_SLICE_S = 1.0
_NAMED = 16


class ExitBarrier:
    """The exit barrier of one round. For one thread."""

    def __init__(
        self,
        store: Store,
        handler: RendezvousHandler,
        *,
        rank: int,
        nodes: int,
        timeout: float,
        runtime: Runtime,
        on_late: Callable[[str], None] = lambda why: None,
    ) -> None:
        """``rank`` of this node among ``nodes``; ``timeout`` (seconds) applies to nodes that are not known to live.

        ``on_late`` is called once, when the timeout is over and others are known to be working; it must return at once.
        """
        self._store, self._handler = store, handler
        self._rank, self._nodes, self._timeout = rank, nodes, timeout
        self._on_late, self._runtime = on_late, runtime

    def wait(self) -> BarrierOver | MustRunAgain:
        """Arrive, and wait for the others. Raises the error that ended the job elsewhere; a signal ends the wait.

        Losing the store ends the wait, too: this node's part is done, unless the round is over for all.
        """
        try:
            self._handler.note_done()
            self._store.set(keys.node_key(self._rank), "")
            if self._store.add(keys.ARRIVALS, 1) == self._nodes:
                self._store.set(keys.LAST, "")
            return self._wait_all()
        except Exception as error:
            if not is_lost(error):
                raise
            if must_join_again(self._handler):  # the one whose agent serves the store
                logger.info("the round was over in the exit barrier (%s): this node's workers run again", error)
                return MustRunAgain()
            self._handler.raise_if_ended()
            logger.warning("this node is done, but could not wait for the others: %s", error)
            return BarrierOver()

    def _wait_all(self) -> BarrierOver | MustRunAgain:
        start, timeout = self._runtime.monotonic(), self._timeout
        reporting = Reporting(grows=True, runtime=self._runtime)
        while not self._all_done():
            if self._handler.must_rejoin():
                logger.info("another node restarts its workers: this node's workers run again")
                return MustRunAgain()
            waited = self._runtime.monotonic() - start
            if not reporting.is_due() and waited < timeout:
                continue
            names = self._missing()
            if waited >= timeout:
                if not self._handler.working_peers():  # none is known to live
                    logger.warning(
                        "workers of node rank %s were not done %g s after this node's; leaving without them",
                        names,
                        timeout,
                    )
                    return BarrierOver()
                if timeout == self._timeout:
                    self._on_late(f"workers of node rank {names} were not done {timeout:g} s after this node's")
                timeout = waited + EVERY_S
            logger.info("this node is done; waiting for node rank %s (%.0f s)", names, waited)
        return BarrierOver()

    def _missing(self) -> str:
        return some(keys.missing(self._store, self._nodes), _NAMED) or "unknown (plain torchrun nodes do not say)"

    def _all_done(self) -> bool:
        """True once the last node has arrived; waits up to a second for it. Raises what ended the job elsewhere."""
        if appear(self._store, [keys.LAST], _SLICE_S, self._runtime):
            return True
        self._handler.raise_if_ended()
        return False
