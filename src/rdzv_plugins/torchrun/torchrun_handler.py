"""A backend's handler for torch's own agent, which does not say how it ended: what can be known has to do."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import Store
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo

from rdzv_plugins import store
from rdzv_plugins.errors import RdzvError, RendezvousFailed, debug_wanted, is_signal
from rdzv_plugins.interfaces import Failure, Outcome
from rdzv_plugins.rounds.ends import ARRIVALS, node_key
from rdzv_plugins.torch_types import as_torch, first_line, store_errors_of_torch

if TYPE_CHECKING:
    from rdzv_plugins.registry.rendezvous import Rendezvous


def _passed_on(name: str) -> Callable[..., Any]:
    def ask(self: AgentStore, *arguments: Any, **named: Any) -> Any:
        with store_errors_of_torch():
            return getattr(self._inner, name)(*arguments, **named)

    return ask


class AgentStore(Store):  # type: ignore[misc]
    """Passes everything on to ``inner``, turning our errors into torch's; equally thread-safe.

    ``on_done`` is called before node ``rank`` enters the barrier.

    Its time-out is its own: torch's agent changes it for its barriers, and behind a prefix ``inner`` may be the control
    store, which other threads use meanwhile.
    """

    def __init__(self, inner: store.Store, rank: int, on_done: Callable[[], None]) -> None:
        super().__init__()
        self._inner, self._rank, self._on_done = inner, rank, on_done
        self._timeout: timedelta | None = None

    def add(self, key: str, amount: int) -> int:
        if key == ARRIVALS:
            self._on_done()
            self.set(node_key(self._rank), "")
        with store_errors_of_torch():
            return self._inner.add(key, amount)

    set = _passed_on("set")
    compare_set = _passed_on("compare_set")
    check = _passed_on("check")
    delete_key = _passed_on("delete_key")
    num_keys = _passed_on("num_keys")
    multi_set = _passed_on("multi_set")

    @property
    def timeout(self) -> timedelta:
        """The most time that a wait may take."""
        return self._inner.timeout if self._timeout is None else self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def get(self, key: str) -> bytes:
        with store_errors_of_torch():
            self._wait_as_told([key])
            return self._inner.get(key)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        with store_errors_of_torch():
            self._wait_as_told(keys)
            return self._inner.multi_get(keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        with store_errors_of_torch():
            self._inner.wait(keys, self.timeout if timeout is None else timeout)

    def _wait_as_told(self, keys: Sequence[str]) -> None:
        if self._timeout is not None:
            self._inner.wait(keys, self._timeout)


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
            outcome = Outcome("lost", f"it was done but still serving others when it was stopped: {error}")
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
            return Outcome("lost", f"{who} left before a round was complete")
        return Outcome("lost", f"{who} {'was stopped' if is_signal(error) else 'ended'}: {first_line(error)}")

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
