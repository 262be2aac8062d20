"""What ``create`` may return: told apart by their methods, as the launcher does. Needs no pytest."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.interfaces import RendezvousBackend, RendezvousHandler

Kind: TypeAlias = Literal["state", "coordination", "handler"]

_CONTRACTS: tuple[tuple[Kind, type], ...] = (
    ("handler", RendezvousHandler),
    ("coordination", CoordinationBackend),
    ("state", RendezvousBackend),
)
"""The kinds and their protocols, in the order in which the launcher looks."""
KINDS = ("state", "coordination", "handler")


def kind_of(created: Any) -> Kind | None:
    """The kind of what a backend has created; None if it is of none."""
    return next((kind for kind, contract in _CONTRACTS if isinstance(created, contract)), None)


def no_kind(created: Any) -> str:
    """The sentence for what is none of them."""
    return (
        f"create() returned a {type(created).__name__}, which has the methods of no contract: "
        "it has to return a RendezvousBackend, a CoordinationBackend or a RendezvousHandler"
    )
