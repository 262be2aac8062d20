"""What to build a plug-in with: options to derive from, and all of a coordination backend except its own requests.

An author writes a ``ServiceClient``, which consists only of coroutines, and ``coordination_backend`` turns it into a
``CoordinationBackend``: the thread, keeping sessions alive, reconnecting, time limits, watches and messages. For a
service that does more by itself, write an ``AsyncSession`` instead. Importing this imports neither torch nor asyncio.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rdzv_plugins.certificates import warn_if_others_can_read
    from rdzv_plugins.dynamic.options import DynamicSettings
    from rdzv_plugins.elastic.options import ElasticOptions
    from rdzv_plugins.elastic.options import validate as validate_elastic
    from rdzv_plugins.kit.client import ServiceClient, SessionEnded
    from rdzv_plugins.kit.client_session import coordination_backend
    from rdzv_plugins.kit.coordination import Coordination
    from rdzv_plugins.kit.keeping import Keeper
    from rdzv_plugins.kit.loop import in_thread, within
    from rdzv_plugins.kit.reasons import HANGS_UP, NO_ANSWER, SILENT, Reason, Unusable, network_reason
    from rdzv_plugins.kit.security import Account, Security, TlsOptions
    from rdzv_plugins.kit.session import AsyncSession, Closed
    from rdzv_plugins.kvstore.coordination.reactor import StoppableCall
    from rdzv_plugins.options import WorkerStoreOptions
    from rdzv_plugins.plain_text import name_of

__all__ = [
    "Account",
    "AsyncSession",
    "Closed",
    "Coordination",
    "DynamicSettings",
    "ElasticOptions",
    "HANGS_UP",
    "Keeper",
    "NO_ANSWER",
    "Reason",
    "SILENT",
    "Security",
    "ServiceClient",
    "SessionEnded",
    "StoppableCall",
    "TlsOptions",
    "Unusable",
    "WorkerStoreOptions",
    "coordination_backend",
    "in_thread",
    "name_of",
    "network_reason",
    "validate_elastic",
    "warn_if_others_can_read",
    "within",
]

_AT = {
    "elastic.options": ("ElasticOptions", "validate_elastic"),
    "dynamic.options": ("DynamicSettings",),
    "kit.client": ("ServiceClient", "SessionEnded"),
    "kit.client_session": ("coordination_backend",),
    "kit.coordination": ("Coordination",),
    "kit.keeping": ("Keeper",),
    "kit.loop": ("in_thread", "within"),
    "kit.reasons": ("HANGS_UP", "NO_ANSWER", "Reason", "SILENT", "Unusable", "network_reason"),
    "kit.security": ("Account", "Security", "TlsOptions"),
    "kit.session": ("AsyncSession", "Closed"),
    "kvstore.coordination.reactor": ("StoppableCall",),
    "options": ("WorkerStoreOptions",),
    "plain_text": ("name_of",),
    "certificates": ("warn_if_others_can_read",),
}
_OTHER_NAMES = {"validate_elastic": "validate"}


if not TYPE_CHECKING:  # which would take any name for one of ours

    def __getattr__(name: str) -> Any:
        # On first use: a plug-in's module, which every launch loads, takes its options from here and no more.
        for module, names in _AT.items():
            if name in names:
                value = getattr(import_module(f"rdzv_plugins.{module}"), _OTHER_NAMES.get(name, name))
                globals()[name] = value
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
