"""Rendezvous backends for distributed PyTorch, as plug-ins. Importing this package does not import torch."""

from rdzv_plugins.hookspecs import hookimpl
from rdzv_plugins.interfaces import (
    Backend,
    Capability,
    Failure,
    JobAware,
    Outcome,
    RendezvousBackend,
    RendezvousHandler,
    RendezvousInfo,
    Request,
    StoreAddress,
)
from rdzv_plugins.options import option

__all__ = [
    "Backend",
    "Capability",
    "Failure",
    "JobAware",
    "Outcome",
    "RendezvousBackend",
    "RendezvousHandler",
    "RendezvousInfo",
    "Request",
    "StoreAddress",
    "hookimpl",
    "option",
]
