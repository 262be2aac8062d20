"""Rendezvous backends for distributed PyTorch, as plug-ins. Importing this package does not import torch.

What a plug-in needs of the contract is imported from here; errors from ``rdzv_plugins.errors``.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as typing's, which takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any

    from rdzv_plugins.coordination import CoordinationBackend as CoordinationBackend
    from rdzv_plugins.coordination import EndsSessions as EndsSessions
    from rdzv_plugins.coordination import Event as Event
    from rdzv_plugins.coordination import KeyValue as KeyValue
    from rdzv_plugins.coordination import OnEvents as OnEvents
    from rdzv_plugins.coordination import Session as Session
    from rdzv_plugins.coordination import SeveralServices as SeveralServices
    from rdzv_plugins.coordination import Watch as Watch
    from rdzv_plugins.endpoints import ALONE as ALONE
    from rdzv_plugins.endpoints import Endpoint as Endpoint
    from rdzv_plugins.endpoints import meeting_point as meeting_point
    from rdzv_plugins.endpoints import parse_endpoint as parse_endpoint
    from rdzv_plugins.endpoints import require_meeting_point as require_meeting_point
    from rdzv_plugins.hookspecs import hookimpl as hookimpl
    from rdzv_plugins.interfaces import DEFAULT_RUN_ID as DEFAULT_RUN_ID
    from rdzv_plugins.interfaces import Backend as Backend
    from rdzv_plugins.interfaces import Capability as Capability
    from rdzv_plugins.interfaces import Created as Created
    from rdzv_plugins.interfaces import Failure as Failure
    from rdzv_plugins.interfaces import Holding as Holding
    from rdzv_plugins.interfaces import Node as Node
    from rdzv_plugins.interfaces import NodeCheck as NodeCheck
    from rdzv_plugins.interfaces import NodeStatus as NodeStatus
    from rdzv_plugins.interfaces import Outcome as Outcome
    from rdzv_plugins.interfaces import RendezvousBackend as RendezvousBackend
    from rdzv_plugins.interfaces import RendezvousHandler as RendezvousHandler
    from rdzv_plugins.interfaces import RendezvousInfo as RendezvousInfo
    from rdzv_plugins.interfaces import Request as Request
    from rdzv_plugins.interfaces import RoundEvent as RoundEvent
    from rdzv_plugins.interfaces import RoundInfo as RoundInfo
    from rdzv_plugins.interfaces import RunStatus as RunStatus
    from rdzv_plugins.interfaces import ServiceCheck as ServiceCheck
    from rdzv_plugins.interfaces import SharesStore as SharesStore
    from rdzv_plugins.interfaces import StoreAddress as StoreAddress
    from rdzv_plugins.interfaces import StoreInfo as StoreInfo
    from rdzv_plugins.interfaces import TellEvent as TellEvent
    from rdzv_plugins.interfaces import Token as Token
    from rdzv_plugins.interfaces import TorchHandler as TorchHandler
    from rdzv_plugins.options import OptionInfo as OptionInfo
    from rdzv_plugins.options import PortRange as PortRange
    from rdzv_plugins.options import WorkerStoreOptions as WorkerStoreOptions
    from rdzv_plugins.options import describe_options as describe_options
    from rdzv_plugins.options import option as option
    from rdzv_plugins.options import parse_conf as parse_conf
    from rdzv_plugins.options import parse_options as parse_options
    from rdzv_plugins.store import Prefixed as Prefixed
    from rdzv_plugins.store import Store as Store
    from rdzv_plugins.store import Text as Text

_MODULES = {
    "coordination": "CoordinationBackend EndsSessions Event KeyValue OnEvents Session SeveralServices Watch",
    "endpoints": "ALONE Endpoint meeting_point parse_endpoint require_meeting_point",
    "hookspecs": "hookimpl",
    "interfaces": "Backend Capability Created DEFAULT_RUN_ID Failure Holding Node NodeCheck NodeStatus Outcome "
    "RendezvousBackend RendezvousHandler RendezvousInfo Request RoundEvent RoundInfo RunStatus ServiceCheck "
    "SharesStore StoreAddress StoreInfo TellEvent Token TorchHandler",
    "options": "OptionInfo PortRange WorkerStoreOptions describe_options option parse_conf parse_options",
    "store": "Prefixed Store Text",
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = list(_WHERE)

if not TYPE_CHECKING:  # which would take any name for one of ours

    def __getattr__(name: str) -> Any:
        # On first use: torch imports this package, for our entry point, in processes that need none of it.
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
        globals()[name] = value
        return value
