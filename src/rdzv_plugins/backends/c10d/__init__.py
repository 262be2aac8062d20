"""``c10d``: torch's dynamic rendezvous on a TCPStore that one of the nodes serves.

Features: min:max nodes, restarts, late joiners; nodes may be plain torchrun of the same torch version.
Endpoint: ``HOST[:PORT]``, port 29400 when left out, 0 for any (one node only). With ``store_type=file``
it is the path of a file that all nodes share; one node alone may leave it out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from rdzv_plugins.backends import later
from rdzv_plugins.dynamic.options import DynamicSettings
from rdzv_plugins.endpoints import Endpoint, meeting_point
from rdzv_plugins.errors import UsageError
from rdzv_plugins.hookspecs import hookimpl
from rdzv_plugins.interfaces import Backend, Capability, Request
from rdzv_plugins.options import option

logger = logging.getLogger(__name__)

NAME = "c10d"
DEFAULT_PORT = 29400


def state_key(run_id: str) -> str:
    """The key under which torch's backend of this name keeps the state of a run."""
    return f"torch.rendezvous.{run_id}"


@dataclass(frozen=True)
class C10dOptions(DynamicSettings):
    """torch's keys for its c10d backend, and ours for the workers' store."""

    timeout: float | None = option(None, help="Not used, as in torch: the time-out of c10d is join_timeout.", unit="s")
    is_host: bool | None = option(
        None, help="Whether this node serves the control store; unset: if the endpoint is one of its addresses."
    )
    store_type: Literal["tcp", "file"] = option("tcp", help="tcp, or a file on a file system that all nodes share.")

    @property
    def join_seconds(self) -> float:
        return self.join_timeout or 600.0


def validate(request: Request) -> Endpoint | None:
    """Reject an endpoint that cannot work, before anything starts; returns it, or None for a file."""
    if request.options.timeout is not None:
        logger.warning("timeout is not used by c10d, as in torchrun: the time-out is --rdzv-conf join_timeout=SECONDS")
    if request.options.store_type == "file":
        if request.max_nodes > 1 and not request.endpoint:
            raise UsageError(
                f"store_type=file needs the path of a file that all {request.max_nodes} nodes share",
                remedy="Give --rdzv-endpoint=PATH, the same on every node.",
            )
        return None
    return meeting_point(request, DEFAULT_PORT)


@hookimpl
def rdzv_register_backends() -> Backend:
    """Register the backend: the hook through which it is found."""
    return Backend(
        name=NAME,
        summary="torch's dynamic rendezvous (min:max nodes) on a TCPStore served by the endpoint's node",
        create=later(f"{__name__}.backend", "open_backend"),
        capabilities=frozenset({Capability.ELASTIC, Capability.TORCHRUN_PEERS}),
        options=C10dOptions,
        validate=validate,
        preflight=later(f"{__name__}.backend", "preflight"),
        meets_at="node",
        recognise=later(f"{__name__}.look", "recognise"),
        status=later(f"{__name__}.look", "status"),
    )
