"""A node's part in its job's rendezvous: the backend's handler, with the hooks of plug-ins around each round.

With --preflight it tests itself before each round, and asks plug-ins; the handler acts on the results. If the backend's
nodes do not decide together who takes part, that is decided here: a broken node ends.

Jobs of several nodes at an endpoint that only this machine can reach are right only for agents on one machine. On each
of several machines it is a different place, and an elastic job would train once on each.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence

from rdzv_plugins.endpoints import Endpoint, is_only_local
from rdzv_plugins.errors import PreflightFailed, UsageError
from rdzv_plugins.interfaces import NodeCheck, Outcome, RendezvousHandler, RendezvousInfo, Request
from rdzv_plugins.registry.manager import PluginHost
from rdzv_plugins.system.preflight import PLUGINS

logger = logging.getLogger(__name__)


class Rendezvous:
    """Joins and leaves by a backend's handler, which answers everything else itself. For the agent's main thread."""

    def __init__(
        self,
        handler: RendezvousHandler,
        host: PluginHost,
        request: Request,
        local: bool = False,
        directories: Sequence[str] = (),
    ) -> None:
        """``local``: other machines may be meant to take part, and cannot.

        ``directories`` are those that this node writes to, for the checks that the request asks for.
        """
        self.handler = handler
        self._directories = directories
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
        if request.preflight:
            self._preflight()
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

    def _preflight(self) -> None:
        """Make the checks that the request asks for, or let a handler that knows what follows make them before a round.

        Raises ``PreflightFailed``, or as the hook ``rdzv_preflight``.
        """
        if self.handler.check_by(self._checks):
            return
        checks = self._checks()
        for each in checks:
            if each.verdict == "warning":
                logger.warning("--preflight: %s: %s", each.name, each.text)
        if broken := [f"{each.name}: {each.text}" for each in checks if each.verdict == "broken"]:
            raise PreflightFailed(
                f"run {self._request.run_id!r}: this node failed its checks: {'; '.join(broken)}",
                remedy=f"Repair or replace it. Backend {self._request.backend!r} cannot leave out a node.",
            )

    def _checks(self) -> list[NodeCheck]:
        from rdzv_plugins.system.node_checks import checks_of

        began = time.monotonic()
        checks = checks_of(self._request.preflight, self._directories)
        if PLUGINS in self._request.preflight:
            checks += self._host.preflight(self._request)
        for each in checks:
            logger.debug("--preflight: %s %s: %s", each.verdict, each.name, each.text or each.value)
        logger.info("--preflight: node checks took %.1f s", time.monotonic() - began)
        return checks


def _in_contract(info: RendezvousInfo) -> RendezvousInfo:
    """The round as in the contract: a store of torch's, as c10d and plug-ins return, is made to raise our errors."""
    if "torch" not in sys.modules:  # then it is none of torch's
        return info
    from rdzv_plugins.torch_types import in_contract

    return in_contract(info)


_STEP_NODES = "SLURM_STEP_NUM_NODES"
"""srun's variable for the number of machines on which it has started this command; the job may have more."""


def meets_locally(request: Request, meets_at: str) -> bool:
    """True if several nodes are to meet at one of them that no other machine can reach.

    A service may be anywhere behind a loopback address: etcd's gateway or a tunnel has one on each machine.
    """
    return request.max_nodes > 1 and meets_at == "node" and is_only_local(request.endpoint)


def refuse_on_several_machines(request: Request) -> None:
    """Refuse a job that meets locally if it is known to have other machines. Raises ``UsageError``."""
    machines = os.environ.get(_STEP_NODES, "")
    if machines.isdecimal() and int(machines) > 1:
        raise UsageError(
            f"srun started this command on {machines} machines, but {request.endpoint} is a loopback address: the "
            "nodes could not reach each other there",
            remedy="Give --rdzv-endpoint=HOST:PORT, the same on all, with the first HOST that "
            '`scontrol show hostnames "$SLURM_JOB_NODELIST"` prints. (For agents on one machine: srun --nodes=1.)',
        )


def warn_of_small_round(request: Request, nodes: int) -> None:
    """Warn if a job that meets locally has formed a round with fewer nodes than it has room for."""
    logger.warning(
        "this round has %d of %d:%d nodes, and nodes on other machines cannot join: %s is a loopback address. If other "
        "machines should take part, give all nodes the address of one machine: --rdzv-endpoint=HOST:PORT",
        nodes,
        request.min_nodes,
        request.max_nodes,
        request.endpoint,
    )
