"""A backend's handler for torch's own agent, which does not say how it ended: what can be known has to do."""

from __future__ import annotations

import logging
import socket
import sys
from typing import TYPE_CHECKING

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo

from rdzv_plugins.errors import RdzvError, RendezvousFailed, debug_wanted, is_signal
from rdzv_plugins.interfaces import Failure, Outcome
from rdzv_plugins.torch_bridge.agent_store import AgentStore
from rdzv_plugins.torch_types.errors import as_torch

if TYPE_CHECKING:
    from rdzv_plugins.assemble.rendezvous import Rendezvous

logger = logging.getLogger(__name__)


class TorchrunHandler(RendezvousHandler):  # type: ignore[misc]
    """A ``RendezvousHandler`` of torch's. As thread-safe as the handler that it passes everything on to."""

    def __init__(self, name: str, rendezvous: Rendezvous) -> None:
        """``name`` is the backend's as it was requested: torch rejects a handler that calls itself something else."""
        self._name, self._rendezvous, self._handler = name, rendezvous, rendezvous.handler
        # a job may be launched while an exception is being handled, for example that of the previous job
        self._earlier = sys.exc_info()[1]
        self._rank: int | None = None
        self._succeeded = False

    def get_backend(self) -> str:
        return self._name

    @property
    def use_agent_store(self) -> bool:
        return self._handler.use_agent_store

    def get_run_id(self) -> str:
        return self._handler.get_run_id()

    def is_closed(self) -> bool:
        return self._handler.is_closed()

    def set_closed(self) -> None:
        self._handler.set_closed()

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round, and have its store report when the workers of this node are done."""
        try:
            info = self._rendezvous.next_rendezvous()
        except RdzvError as error:
            raise in_full(error) from error.__cause__
        self._rank, self._succeeded = info.rank, False
        store = AgentStore(info.store, info.rank, self._note_success)
        return RendezvousInfo(store, info.rank, info.world_size, info.bootstrap_store_info)

    def num_nodes_waiting(self) -> int:
        try:
            return self._handler.num_nodes_waiting()
        except RdzvError as error:
            raise in_full(error) from error.__cause__

    def shutdown(self) -> bool:
        """Leave as done, failed or lost. A node that is done and serves others stays while they work, however long."""
        outcome = self._outcome()
        try:
            if outcome.end == "done":
                self._stay()
        except BaseException as error:  # a signal, which torch's agent turns into an exception
            outcome = Outcome("lost", f"it was done, but served others, and was stopped: {error}")
            raise
        finally:
            self._rendezvous.leave(outcome)
        return self._rendezvous.shutdown()

    def _stay(self) -> None:
        try:
            self._handler.stay()
        except RdzvError as error:  # the job has ended elsewhere; this node's workers have succeeded nevertheless
            logger.warning("%s", error)

    def _note_success(self) -> None:
        self._succeeded = True
        self._handler.note_done()

    def _outcome(self) -> Outcome:
        """How torch's agent has ended.

        If its workers have succeeded, it has entered the exit barrier, or leaves a round without an error. If restarts
        are used up, torch raises ``ChildFailedError``. Any other error is one of the agent.
        """
        error = sys.exc_info()[1]
        if self._succeeded or (self._rank is not None and error in (None, self._earlier)):
            return Outcome("done")
        if isinstance(error, ChildFailedError) and error is not self._earlier:
            return self._failed(error)
        who = f"the agent on {socket.gethostname()}"
        if error is None or error is self._earlier:
            return Outcome("lost", f"{who} has left before a round was complete")
        return Outcome("lost", f"{who} {'was stopped' if is_signal(error) else 'ended'}: {_first_line(error)}")

    def _failed(self, error: ChildFailedError) -> Outcome:
        rank, own = error.get_first_failure()
        failure = Failure(
            node_rank=-1 if self._rank is None else self._rank,
            host=socket.gethostname(),
            global_rank=rank,
            local_rank=own.local_rank,
            pid=own.pid,
            exit_code=own.exitcode,
        )
        how = f"signal {-own.exitcode}" if own.exitcode < 0 else f"exit code {own.exitcode}"
        return Outcome("failed", f"rank {rank} (local rank {own.local_rank}, pid {own.pid}) ended with {how}", failure)


def in_full(error: RdzvError) -> RdzvError:
    """The error as torch should print it: with the remedy in its text, and of torch's class if it is of a rendezvous.

    What led to it here is left out, unless RDZV_DEBUG=1: torch prints its own way to us in any case.
    """
    if isinstance(error, RendezvousFailed):
        error = as_torch(error)
    text, remedy = str(error), error.remedy
    if remedy and not text.endswith(remedy):
        error.args = (f"{text}{'' if text.endswith(('.', '?', '!')) else '.'} {remedy}",)
    if debug_wanted():
        return error
    error.__cause__, error.__suppress_context__ = None, True
    return error.with_traceback(None)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
