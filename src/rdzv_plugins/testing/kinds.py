"""What ``create`` may return: kinds are told apart by their methods, as in the launcher. Needs no pytest."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.interfaces import RendezvousBackend, TorchHandler

Kind: TypeAlias = Literal["state", "coordination", "handler"]

_CONTRACTS: tuple[tuple[Kind, type], ...] = (
    ("handler", TorchHandler),
    ("coordination", CoordinationBackend),
    ("state", RendezvousBackend),
)
"""The kinds and their protocols, in the order in which the launcher looks."""
KINDS = ("state", "coordination", "handler")


def kind_of(created: Any) -> Kind | None:
    """The kind of what a backend has created; None if it is of no kind."""
    return next((kind for kind, contract in _CONTRACTS if isinstance(created, contract)), None)


def no_kind(created: Any) -> str:
    """The sentence for what is of no kind."""
    return (
        f"create() returned a {type(created).__name__}, which has the methods of no contract: "
        "it has to return a RendezvousBackend, a CoordinationBackend or a RendezvousHandler"
    )
