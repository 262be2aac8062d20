"""A backend's handler as the launcher uses it: under the requested name, with the hooks of plug-ins."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rdzv_plugins.assemble.border import blaming, is_of_torch, misfit
from rdzv_plugins.assemble.local_endpoint import warn_of_small_round
from rdzv_plugins.assemble.node_preflight import NodePreflight
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.host.manager import PluginHost
from rdzv_plugins.interfaces import (
    EnvironmentAware,
    EventAware,
    Failure,
    Holding,
    JobAware,
    MembershipAware,
    Outcome,
    PeerAware,
    RendezvousHandler,
    RendezvousInfo,
    Request,
    RestartAware,
    TellEvent,
    WaitAware,
)

if TYPE_CHECKING:
    from rdzv_plugins.host.catalog import Entry
    from rdzv_plugins.questions import Questions

logger = logging.getLogger(__name__)

T = TypeVar("T")


class HostedHandler:
    """A backend's handler under the requested name, with the plug-ins' hooks around each round."""

    def __init__(
        self,
        inner: RendezvousHandler,
        host: PluginHost,
        request: Request,
        local: bool = False,
        preflight: NodePreflight | None = None,
        made_by: Entry | None = None,
    ) -> None:
        """``local``: other machines may be meant to take part, and cannot.

        ``preflight``: the tests that this node runs on itself before each round. ``made_by``: the plug-in whose own
        handler ``inner`` is, and who answers for it; None for one of the framework's.
        """
        self._made_by = made_by
        self._preflight = preflight or NodePreflight(host, request)
        self._inner = inner
        self._host = host
        self._request = request
        self._local = local
        self._left = self._joined = False

    def get_backend(self) -> str:
        """The requested name: torch rejects a handler that calls itself something else."""
        return self._request.backend

    @property
    def use_agent_store(self) -> bool:
        return self._asked("use_agent_store", lambda: self._inner.use_agent_store)

    def next_rendezvous(self) -> RendezvousInfo:
        request = self._request
        level = logging.INFO if request.max_nodes > 1 else logging.DEBUG
        first, self._joined = not self._joined, True
        self._host.before_join(request)
        self._preflight.before(self._inner)
        logger.log(
            level if first else logging.DEBUG,
            "run %s: joining%s by %s",
            request.run_id,
            request.at_endpoint,
            request.backend,
        )
        info = _in_contract(self._asked("next_rendezvous", self._inner.next_rendezvous))
        self._host.after_join(request, info)
        where = info.bootstrap_store_info
        logger.log(
            level,
            "run %s: this is node %d of %d%s",
            request.run_id,
            info.rank,
            info.world_size,
            f"; its workers use the store at {Endpoint(where.master_addr, where.master_port)}" if where else "",
        )
        if self._local:
            self._local = info.world_size < request.max_nodes  # otherwise all are on this machine
            if self._local and info.rank == 0:
                warn_of_small_round(request, info.world_size)
                self._local = False
        return info

    def is_closed(self) -> bool:
        return self._asked("is_closed", self._inner.is_closed)

    def set_closed(self) -> None:
        self._asked("set_closed", self._inner.set_closed)

    def num_nodes_waiting(self) -> int:
        return self._asked("num_nodes_waiting", self._inner.num_nodes_waiting)

    def get_run_id(self) -> str:
        return self._asked("get_run_id", self._inner.get_run_id)

    def note_failure(self, failure: Failure) -> None:
        if isinstance(self._inner, JobAware):
            self._asked("note_failure", self._inner.note_failure, failure)

    def first_failure(self) -> Failure | None:
        return self._asked("first_failure", self._inner.first_failure) if isinstance(self._inner, JobAware) else None

    def count_restart(self, note: str) -> Sequence[str] | None:
        """See ``RestartAware``; None if restarts are not counted over all nodes."""
        return (
            self._asked("count_restart", self._inner.count_restart, note)
            if isinstance(self._inner, RestartAware)
            else None
        )

    def waits_for(self) -> str:
        """See ``WaitAware``. Empty if nobody can tell."""
        return self._asked("waits_for", self._inner.waits_for) if isinstance(self._inner, WaitAware) else ""

    def tell_events(self, tell: TellEvent) -> None:
        """See ``EventAware``. Does nothing if the handler reports nothing."""
        if isinstance(self._inner, EventAware):
            self._asked("tell_events", self._inner.tell_events, tell)

    def must_rejoin(self) -> bool:
        return self._asked("must_rejoin", self._inner.must_rejoin) if isinstance(self._inner, JobAware) else False

    def raise_if_ended(self) -> None:
        if isinstance(self._inner, JobAware):
            self._asked("raise_if_ended", self._inner.raise_if_ended)

    def note_done(self) -> None:
        if isinstance(self._inner, MembershipAware):
            self._asked("note_done", self._inner.note_done)

    def note_leaving(self, reason: str) -> None:
        if isinstance(self._inner, MembershipAware):
            self._asked("note_leaving", self._inner.note_leaving, reason)

    def peer_lost(self) -> bool:
        return self._asked("peer_lost", self._inner.peer_lost) if isinstance(self._inner, MembershipAware) else False

    @property
    def holding(self) -> Holding | None:
        """How long a round holds; None if nobody can tell."""
        return getattr(self._inner, "holding", None)

    @property
    def questions(self) -> Questions | None:
        """What carries questions between the nodes; None if nothing does."""
        return getattr(self._inner, "questions", None)

    def working_peers(self) -> Sequence[str]:
        return self._asked("working_peers", self._inner.working_peers) if isinstance(self._inner, PeerAware) else ()

    def lost_peers(self) -> Sequence[str]:
        return self._asked("lost_peers", self._inner.lost_peers) if isinstance(self._inner, PeerAware) else ()

    def stay(self) -> None:
        if isinstance(self._inner, PeerAware):
            self._asked("stay", self._inner.stay)

    def leave(self, outcome: Outcome) -> None:
        self._left = True
        try:
            if isinstance(self._inner, JobAware):
                self._asked("leave", self._inner.leave, outcome)
        finally:
            self._host.shutdown(self._request, outcome)

    def shutdown(self) -> bool:
        if not self._left:
            self.leave(Outcome("lost", "the launcher did not say how it ended"))
        return bool(self._asked("shutdown", self._inner.shutdown))

    def worker_env(self, env: dict[str, str]) -> dict[str, str]:
        """Variables that the handler and the plug-ins add to one worker's environment; a plug-in's take precedence."""
        own: dict[str, str] = {}
        if isinstance(self._inner, EnvironmentAware):
            own = dict(self._asked("worker_env", self._inner.worker_env))
        return own | self._host.worker_env(self._request, env | own)

    def _asked(self, method: str, call: Callable[..., T], *arguments: object) -> T:
        """What a method of the handler returns. A plug-in answers for its own; torch's errors are in the contract."""
        if self._made_by is None:
            return call(*arguments)
        where = f"{method}() of its handler"
        with blaming(self._made_by, f"in {where}", but=_is_expected):
            answer = call(*arguments)
        is_right, wanted = _ANSWERS.get(method, (lambda _: True, ""))
        if not is_right(answer):
            raise misfit(self._made_by, where, answer, wanted)
        return answer


def _is_expected(error: Exception) -> bool:
    return is_of_torch(error) or isinstance(error, TimeoutError)


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _are_texts(values: Any) -> bool:
    return (
        isinstance(values, Sequence) and not isinstance(values, str) and all(isinstance(each, str) for each in values)
    )


def _is_environment(value: Any) -> bool:
    return isinstance(value, Mapping) and _are_texts([*value, *value.values()])


def _is_round(value: Any) -> bool:
    if not all(hasattr(value, each) for each in ("store", "rank", "world_size", "bootstrap_store_info")):
        return False
    where = value.bootstrap_store_info
    found = where is None or (isinstance(where.master_addr, str) and isinstance(where.master_port, int))
    ranks = isinstance(value.rank, int) and isinstance(value.world_size, int) and 0 <= value.rank < value.world_size
    return found and ranks and (value.store is None or hasattr(value.store, "wait"))  # a node alone may do without


_BOOL = (_is(bool), "True or False")
_TEXTS = (_are_texts, "a sequence of texts")
_ANSWERS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "use_agent_store": _BOOL,
    "next_rendezvous": (_is_round, "a RendezvousInfo with a store and ranks"),
    "is_closed": _BOOL,
    "num_nodes_waiting": (_is(int), "a number"),
    "get_run_id": (_is(str), "a text"),
    "first_failure": (_is(Failure, type(None)), "a Failure or None"),
    "must_rejoin": _BOOL,
    "count_restart": _TEXTS,
    "waits_for": (_is(str), "a text"),
    "peer_lost": _BOOL,
    "working_peers": _TEXTS,
    "lost_peers": _TEXTS,
    "worker_env": (_is_environment, "a mapping of texts"),
}
"""What the methods of a handler return, and how that is called."""


def _in_contract(info: RendezvousInfo) -> RendezvousInfo:
    """The round as in the contract: a store of torch's, as c10d and plug-ins return, is made to raise our errors."""
    if "torch" not in sys.modules:  # then it is none of torch's
        return info
    from rdzv_plugins.torch_types.stores import in_contract

    return in_contract(info)
