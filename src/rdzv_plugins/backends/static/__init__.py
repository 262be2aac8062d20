"""``static``: a fixed number of nodes, each with its given rank; node rank 0 serves the control store.

Features: given node ranks, restarts agreed between all nodes, an agent that is started again takes its
old place, a failure ends the job everywhere with its cause. Endpoint: ``HOST:PORT`` of node rank 0.
"""

from __future__ import annotations

import functools
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rdzv_plugins.backends import later
from rdzv_plugins.endpoints import Endpoint, meeting_point, parse_endpoint
from rdzv_plugins.errors import MissingDependency, UsageError
from rdzv_plugins.hookspecs import hookimpl
from rdzv_plugins.interfaces import Backend, Capability, Request
from rdzv_plugins.options import WorkerStoreOptions, option
from rdzv_plugins.runtime import SYSTEM

if TYPE_CHECKING:
    from rdzv_plugins.backends.static.handler import StaticHandler

logger = logging.getLogger(__name__)

NAME = "static"


@dataclass(frozen=True)
class StaticOptions(WorkerStoreOptions):
    """torch's ``rank`` and ``timeout``, and our own options."""

    store: Literal["torch", "parallel"] | None = option(  # type: ignore[assignment]  # unset, too
        None,
        help="Server of the workers' store, and of the control store on node rank 0: torch's own, or parallel, "
        "the native one with several threads; unset: parallel if it is installed.",
    )
    rank: int | None = option(None, help="This node's rank, where --node-rank cannot be given.", minimum=0)
    timeout: float = option(900, help="Time within which all nodes have to join a round.", unit="s", minimum=1)
    read_timeout: float = option(60, help="Limit of one read of the control store.", unit="s", minimum=1)
    linger: float = option(
        5,
        help="Once nobody is working, how long a node that serves others waits for them to leave.",
        unit="s",
        minimum=0,
    )

    @property
    def is_native(self) -> bool:
        """Whether the stores are native ones. If unset, this is the node's own choice: both speak torch's format."""
        return self.store == "parallel" if self.store is not None else _has_native_store()


@functools.cache
def _has_native_store() -> bool:
    from rdzv_plugins.kvstore.native.server import native_part

    try:
        native_part()
    except MissingDependency as error:
        logger.debug("torch's own store serves this job, from node rank 0: %s", error)
        return False
    return True


def run_prefix(run_id: str) -> str:
    """The prefix of all keys of a run in the control store."""
    return f"rdzv_plugins.{NAME}.{run_id}"


def node_rank(request: Request) -> int:
    """This node's rank: the given one, or 0 if there is only one node. Raises ``UsageError``."""
    given, conf = request.node_rank, request.options.rank
    if given is not None and conf is not None and given != conf:
        raise UsageError(f"--node-rank={given} contradicts --rdzv-conf rank={conf}", remedy="Give only one of them.")
    rank = given if given is not None else conf
    if rank is None:
        if request.max_nodes > 1:
            raise UsageError(
                f"backend 'static' needs to know which of the {request.max_nodes} nodes this one is",
                remedy="Give --node-rank=0 on the node that serves the endpoint, 1, 2, ... on the others "
                "(from plain torchrun: --rdzv-conf=rank=0).",
            )
        rank = 0
    if not 0 <= rank < request.max_nodes:
        raise UsageError(
            f"--node-rank={rank} is out of range for {request.max_nodes} node(s)",
            remedy=f"Node ranks go from 0 to {request.max_nodes - 1}.",
        )
    return rank


def validate(request: Request) -> Endpoint:
    """Reject a contradictory request before anything starts; returns where node rank 0 serves."""
    if request.max_nodes > 1 and not request.endpoint:
        raise UsageError("backend 'static' needs the address of node rank 0", remedy="Give --rdzv-endpoint=HOST:PORT.")
    node_rank(request)
    return meeting_point(request, None)


def create(request: Request) -> StaticHandler:
    """This node's handler. Does not block: node rank 0 is reached in the first round."""
    from rdzv_plugins.backends.static.handler import StaticHandler

    return StaticHandler(request, node_rank(request), SYSTEM)


def preflight(request: Request, held: ExitStack) -> str:
    """What this node finds at the endpoint, or whether it can serve there."""
    return create(request).preflight(held)


def recognise(request: Request, timeout: float) -> str:
    """See ``Backend.recognise``."""
    from rdzv_plugins.kvstore.tcpstore.listener import served_by

    return served_by(NAME, parse_endpoint(request.endpoint, None), timeout)


@hookimpl
def rdzv_register_backends() -> Backend:
    """Register the backend: the hook through which it is found."""
    return Backend(
        name=NAME,
        summary="a fixed number of nodes with given ranks; node rank 0 serves the control store",
        create=create,
        capabilities=frozenset({Capability.NODE_RANK, Capability.NODE_REPLACEMENT}),
        options=StaticOptions,
        validate=validate,
        preflight=preflight,
        meets_at="node",
        recognise=recognise,
        status=later(f"{__name__}.rounds", "status"),
    )
