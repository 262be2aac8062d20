"""A node's part in its job's rendezvous: the backend's handler, with the hooks of plug-ins around each round."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rdzv_plugins.assemble.local_endpoint import warn_of_small_round
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.host.manager import PluginHost
from rdzv_plugins.interfaces import Outcome, RendezvousHandler, RendezvousInfo, Request

if TYPE_CHECKING:
    from rdzv_plugins.assemble.node_preflight import NodePreflight

logger = logging.getLogger(__name__)


class Rendezvous:
    """Joins and leaves by a backend's handler, which answers everything else itself. For the agent's main thread."""

    def __init__(
        self,
        handler: RendezvousHandler,
        host: PluginHost,
        request: Request,
        local: bool = False,
        preflight: NodePreflight | None = None,
    ) -> None:
        """``local``: other machines may be meant to take part, and cannot.

        ``preflight``: the tests that this node runs on itself before each round; None: the request asks for none.
        """
        self.handler = handler
        self._preflight = preflight
        self._host = host
        self._request = request
        self._local = local
        self._left = self._joined = False

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round. Raises as the handler, the node's tests and the hooks."""
        request = self._request
        level = logging.INFO if request.max_nodes > 1 else logging.DEBUG
        first, self._joined = not self._joined, True
        self._host.before_join(request)
        if self._preflight is not None:
            self._preflight.before(self.handler)
        logger.log(
            level if first else logging.DEBUG,
            "run %s: joining%s by %s",
            request.run_id,
            request.at_endpoint,
            request.backend,
        )
        info = _in_contract(self.handler.next_rendezvous())
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

    def leave(self, outcome: Outcome) -> None:
        """Tell the other nodes how this one ends, and the plug-ins that it does."""
        self._left = True
        try:
            self.handler.leave(outcome)
        finally:
            self._host.shutdown(self._request, outcome)

    def shutdown(self) -> bool:
        """Release all resources."""
        if not self._left:
            self.leave(Outcome("lost", "the launcher did not say how it ended"))
        return bool(self.handler.shutdown())

    def worker_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """Variables that the handler and the plug-ins add to one worker's environment; a plug-in's take precedence."""
        own = dict(self.handler.worker_env())
        return own | self._host.worker_env(self._request, {**env, **own})


def _in_contract(info: RendezvousInfo) -> RendezvousInfo:
    """The round as in the contract: a store of torch's, as c10d and plug-ins return, is made to raise our errors."""
    if "torch" not in sys.modules:  # then it is none of torch's
        return info
    from rdzv_plugins.torch_types import in_contract

    return in_contract(info)
