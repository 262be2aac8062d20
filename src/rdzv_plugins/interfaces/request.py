"""The request of one launch on one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

DEFAULT_RUN_ID = "none"
"""The run id of a job without --rdzv-id, as with torchrun."""


def _nobody_knows(endpoint: str) -> str:
    return ""


@dataclass(frozen=True)
class Request:
    """One launch on one node, complete and frozen: nobody re-reads argv or the environment."""

    backend: str
    """The requested name, which may be an alias; the handler's ``get_backend`` returns it."""
    run_id: str
    """The id that all nodes of the job share: --rdzv-id."""
    endpoint: str
    """The endpoint as given; ``endpoints.parse_endpoint`` splits it. Empty when none is needed: ``standalone``."""
    min_nodes: int
    """The MIN of --nnodes=MIN:MAX, at least 1; equal to ``max_nodes`` if only one number was given."""
    max_nodes: int
    nproc_per_node: int
    """Workers of this node; 0 from plain torchrun, which does not say."""
    node_rank: int | None = None
    """The given rank of this node, None when not given."""
    rank_moves: bool = False
    """True if ``node_rank`` is a scheduler's number and not the user's wish: then ranks by domain take precedence."""
    domain: str = ""
    """This node's place in the network as known to a scheduler: a name that nodes near each other share; or ""."""
    local_addr: str | None = None
    """The given address of this node; None: it is learnt from the socket that reaches the endpoint."""
    role: str = "default"
    max_restarts: int = 0
    """How often all workers may be restarted because one failed, before the job fails."""
    conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The keys and values of --rdzv-conf as the user wrote them."""
    options: Any = None
    """``conf`` parsed into the backend's options dataclass; None before the backend is known."""
    entrypoint: tuple[str, ...] = ()
    """The worker's command and arguments."""
    target: Any = field(default=None, repr=False)
    """The result of the backend's ``validate``: where its nodes meet, parsed. None before the backend is known."""
    preflight: tuple[str, ...] = ()
    """The names of the checks to run before each round (``preflight.checks``); may be empty."""
    standalone: bool = False
    """True if this node meets no other: --standalone, or a single node of the default backend without an endpoint."""
    idle: str = ""
    """Why there is nothing to do for this process, which then ends with 0 at once. Empty: it is an agent.

    For plug-ins of schedulers that start a command several times on a node.
    """
    given: frozenset[str] = frozenset()
    """The fields that the user set: ``rdzv_resolve_request`` fills in only the others."""
    whose: Callable[[str], str] = field(default=_nobody_knows, compare=False, repr=False)
    """Tells what listens at an endpoint that does not answer as expected, in words; empty if no other backend knows it.

    It asks the ``Backend.recognise`` of each, which takes two seconds at most. Any thread may call it.
    """

    @property
    def at_endpoint(self) -> str:
        """Where the nodes meet, as part of a message: `` at ENDPOINT``; empty if none was given."""
        return f" at {self.endpoint}" if self.endpoint else ""

    @property
    def is_named(self) -> bool:
        """True if the run id was chosen, and is not the default that any other job may have, too."""
        return self.run_id != DEFAULT_RUN_ID or "run_id" in self.given
