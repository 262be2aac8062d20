"""Rendezvous backends for distributed PyTorch, as plug-ins. Importing this package does not import torch.

What a plug-in needs of the contract is imported from here; errors from ``rdzv_plugins.errors``.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as typing's, which takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any

    from rdzv_plugins.coordination import CoordinationBackend, EndsSessions, Event, KeyValue, OnEvents, Session, Watch
    from rdzv_plugins.endpoints import ALONE, Endpoint, meeting_point, parse_endpoint, require_meeting_point
    from rdzv_plugins.hookspecs import hookimpl
    from rdzv_plugins.interfaces import (
        DEFAULT_RUN_ID,
        Backend,
        Capability,
        Created,
        Failure,
        Holding,
        Node,
        NodeCheck,
        NodeStatus,
        Outcome,
        RendezvousBackend,
        RendezvousHandler,
        RendezvousInfo,
        Request,
        RoundEvent,
        RoundInfo,
        RunStatus,
        ServiceCheck,
        SharesStore,
        StoreAddress,
        StoreInfo,
        TellEvent,
        Token,
        TorchHandler,
    )
    from rdzv_plugins.options import (
        OptionInfo,
        PortRange,
        WorkerStoreOptions,
        describe_options,
        option,
        parse_conf,
        parse_options,
    )
    from rdzv_plugins.store import Prefixed, Store, Text

__all__ = [
    "ALONE",
    "Backend",
    "Capability",
    "CoordinationBackend",
    "Created",
    "DEFAULT_RUN_ID",
    "Endpoint",
    "EndsSessions",
    "Event",
    "Failure",
    "Holding",
    "KeyValue",
    "Node",
    "NodeCheck",
    "NodeStatus",
    "OnEvents",
    "OptionInfo",
    "Outcome",
    "PortRange",
    "Prefixed",
    "RendezvousBackend",
    "RendezvousHandler",
    "RendezvousInfo",
    "Request",
    "RoundEvent",
    "RoundInfo",
    "RunStatus",
    "ServiceCheck",
    "Session",
    "SharesStore",
    "Store",
    "StoreAddress",
    "StoreInfo",
    "TellEvent",
    "Text",
    "Token",
    "TorchHandler",
    "Watch",
    "WorkerStoreOptions",
    "describe_options",
    "hookimpl",
    "meeting_point",
    "option",
    "parse_conf",
    "parse_endpoint",
    "parse_options",
    "require_meeting_point",
]

_MODULES = {
    "coordination": "CoordinationBackend EndsSessions Event KeyValue OnEvents Session Watch",
    "endpoints": "ALONE Endpoint meeting_point parse_endpoint require_meeting_point",
    "hookspecs": "hookimpl",
    "options": "OptionInfo PortRange WorkerStoreOptions describe_options option parse_conf parse_options",
    "store": "Prefixed Store Text",
}
"""Where the names are that are not in ``interfaces``."""
_ELSEWHERE = {name: module for module, names in _MODULES.items() for name in names.split()}


if not TYPE_CHECKING:  # which would take any name for one of ours

    def __getattr__(name: str) -> Any:
        # On first use: torch imports this package, for our entry point, in processes that need none of it.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'interfaces')}"), name)
        globals()[name] = value
        return value
