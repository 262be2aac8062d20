"""A backend's handler as the launcher uses it: under the requested name, with the hooks of plug-ins."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    from rdzv_plugins.questions import Questions

logger = logging.getLogger(__name__)


class HostedHandler:
    """A backend's handler under the requested name, with the plug-ins' hooks around each round."""

    def __init__(
        self,
        inner: RendezvousHandler,
        host: PluginHost,
        request: Request,
        local: bool = False,
        preflight: NodePreflight | None = None,
    ) -> None:
        """``local``: other machines may be meant to take part, and cannot.

        ``preflight``: the tests that this node runs on itself before each round.
        """
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
        return self._inner.use_agent_store

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
        info = _in_contract(self._inner.next_rendezvous())
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
        return self._inner.is_closed()

    def set_closed(self) -> None:
        self._inner.set_closed()

    def num_nodes_waiting(self) -> int:
        return self._inner.num_nodes_waiting()

    def get_run_id(self) -> str:
        return self._inner.get_run_id()

    def note_failure(self, failure: Failure) -> None:
        if isinstance(self._inner, JobAware):
            self._inner.note_failure(failure)

    def first_failure(self) -> Failure | None:
        return self._inner.first_failure() if isinstance(self._inner, JobAware) else None

    def count_restart(self, note: str) -> Sequence[str] | None:
        """See ``RestartAware``; None if restarts are not counted over all nodes."""
        return self._inner.count_restart(note) if isinstance(self._inner, RestartAware) else None

    def waits_for(self) -> str:
        """See ``WaitAware``. Empty if nobody can tell."""
        return self._inner.waits_for() if isinstance(self._inner, WaitAware) else ""

    def tell_events(self, tell: TellEvent) -> None:
        """See ``EventAware``. Does nothing if the handler reports nothing."""
        if isinstance(self._inner, EventAware):
            self._inner.tell_events(tell)

    def must_rejoin(self) -> bool:
        return self._inner.must_rejoin() if isinstance(self._inner, JobAware) else False

    def raise_if_ended(self) -> None:
        if isinstance(self._inner, JobAware):
            self._inner.raise_if_ended()

    def note_done(self) -> None:
        if isinstance(self._inner, MembershipAware):
            self._inner.note_done()

    def note_leaving(self, reason: str) -> None:
        if isinstance(self._inner, MembershipAware):
            self._inner.note_leaving(reason)

    def peer_lost(self) -> bool:
        return self._inner.peer_lost() if isinstance(self._inner, MembershipAware) else False

    @property
    def holding(self) -> Holding | None:
        """How long a round holds; None if nobody can tell."""
        return getattr(self._inner, "holding", None)

    @property
    def questions(self) -> Questions | None:
        """What carries questions between the nodes; None if nothing does."""
        return getattr(self._inner, "questions", None)

    def working_peers(self) -> Sequence[str]:
        return self._inner.working_peers() if isinstance(self._inner, PeerAware) else ()

    def lost_peers(self) -> Sequence[str]:
        return self._inner.lost_peers() if isinstance(self._inner, PeerAware) else ()

    def stay(self) -> None:
        if isinstance(self._inner, PeerAware):
            self._inner.stay()

    def leave(self, outcome: Outcome) -> None:
        self._left = True
        try:
            if isinstance(self._inner, JobAware):
                self._inner.leave(outcome)
        finally:
            self._host.shutdown(self._request, outcome)

    def shutdown(self) -> bool:
        if not self._left:
            self.leave(Outcome("lost", "the launcher did not say how it ended"))
        return self._inner.shutdown()

    def worker_env(self, env: dict[str, str]) -> dict[str, str]:
        """Variables that the handler and the plug-ins add to one worker's environment; a plug-in's take precedence."""
        own = dict(self._inner.worker_env()) if isinstance(self._inner, EnvironmentAware) else {}
        return own | self._host.worker_env(self._request, env | own)


def _in_contract(info: RendezvousInfo) -> RendezvousInfo:
    """The round as in the contract: a store of torch's, as c10d and plug-ins return, is made to raise our errors."""
    if "torch" not in sys.modules:  # then it is none of torch's
        return info
    from rdzv_plugins.torch_types.stores import in_contract

    return in_contract(info)
