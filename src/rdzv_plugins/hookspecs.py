"""The whole contract between the framework and its plug-ins.

A backend needs the first hook only; the others are optional, and a plug-in may also have just those.
A plug-in is a module named by an entry point of group ``rdzv_plugins``. It marks its functions with
``rdzv_plugins.hookimpl``. A hook may take any subset of the arguments, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from rdzv_plugins.interfaces import Backend, Node, Outcome, RendezvousInfo, Request

PROJECT = "rdzv_plugins"
"""Name of the pluggy project and of the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def rdzv_register_backends() -> Backend | Iterable[Backend]:  # type: ignore[empty-body]
    """Return the backend or backends of this plug-in. Called once; must not import torch."""


@hookspec
def rdzv_resolve_request(request: Request) -> Mapping[str, Any] | None:
    """Return ``Request`` fields that the surroundings know (Slurm, Kubernetes): node_rank, endpoint, run_id, ...

    Fields that the user gave win over any plug-in; among plug-ins the first to answer wins.
    """


@hookspec
def rdzv_before_join(request: Request) -> None:
    """Called before every round. Raise ``errors.JoinVetoed`` to keep this node out (a health check)."""


@hookspec
def rdzv_after_join(request: Request, info: RendezvousInfo) -> None:
    """Called after every completed round, before the workers start."""


@hookspec
def rdzv_assign_ranks(request: Request, nodes: Sequence[Node]) -> Sequence[str] | None:
    """Return the ids of ``nodes`` in the order of their ranks, as a topology wants them.

    Called where an elastic backend forms a round, with the nodes that neither were given a node rank nor return
    to an old one, in the order of their arrival. Ids left out come last. The first plug-in to answer decides.
    """


@hookspec
def rdzv_worker_env(request: Request, env: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return variables to add to one worker's environment. ``env`` has RANK, LOCAL_RANK, MASTER_ADDR, ..."""


@hookspec
def rdzv_shutdown(request: Request, outcome: Outcome) -> None:
    """Called once when this node's part in the job has ended, whatever way."""
