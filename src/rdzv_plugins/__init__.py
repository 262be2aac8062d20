"""Rendezvous backends for distributed PyTorch, as plug-ins. Importing this package does not import torch."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as typing's, which takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any

    from rdzv_plugins.coordination import CoordinationBackend, EndsSessions, Event, KeyValue, OnEvents, Session, Watch
    from rdzv_plugins.hookspecs import hookimpl
    from rdzv_plugins.interfaces import (
        Backend,
        Capability,
        Failure,
        Node,
        NodeCheck,
        Outcome,
        RendezvousBackend,
        RendezvousHandler,
        RendezvousInfo,
        Request,
        ServiceCheck,
        SharesStore,
        StoreAddress,
    )
    from rdzv_plugins.options import option
    from rdzv_plugins.round_info import RoundInfo, StoreInfo
    from rdzv_plugins.store import Store

__all__ = [
    "Backend",
    "Capability",
    "CoordinationBackend",
    "EndsSessions",
    "Event",
    "Failure",
    "KeyValue",
    "Node",
    "NodeCheck",
    "OnEvents",
    "Outcome",
    "RendezvousBackend",
    "RendezvousHandler",
    "RendezvousInfo",
    "Request",
    "RoundInfo",
    "ServiceCheck",
    "Session",
    "SharesStore",
    "Store",
    "StoreAddress",
    "StoreInfo",
    "Watch",
    "hookimpl",
    "option",
]

_COORDINATION = ("CoordinationBackend", "EndsSessions", "Event", "KeyValue", "OnEvents", "Session", "Watch")
_ELSEWHERE = {
    **dict.fromkeys(_COORDINATION, "coordination"),
    **dict.fromkeys(("RoundInfo", "StoreInfo"), "round_info"),
    "Store": "store",
    "hookimpl": "hookspecs",
    "option": "options",
}


if not TYPE_CHECKING:  # which would take any name for one of ours

    def __getattr__(name: str) -> Any:
        # On first use: torch imports this package, for our entry point, in processes that need none of it.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'interfaces')}"), name)
        globals()[name] = value
        return value
