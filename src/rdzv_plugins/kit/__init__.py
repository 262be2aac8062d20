"""What to build a plug-in with: options to derive from, and all of a coordination backend except its own requests.

An author writes a ``ServiceClient``, which consists only of coroutines, and ``coordination_backend`` turns it into a
``CoordinationBackend``: the thread, keeping sessions alive, reconnecting, time limits, watches and messages. Importing
this imports neither torch nor asyncio.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rdzv_plugins.dynamic.options import DynamicSettings as DynamicSettings
    from rdzv_plugins.elastic.options import ElasticOptions as ElasticOptions
    from rdzv_plugins.elastic.options import validate_elastic as validate_elastic
    from rdzv_plugins.kit.client import ServiceClient as ServiceClient
    from rdzv_plugins.kit.client import SessionEnded as SessionEnded
    from rdzv_plugins.kit.coordination import Coordination as Coordination
    from rdzv_plugins.kit.coordination import coordination_backend as coordination_backend
    from rdzv_plugins.kit.loop import TIMEOUTS as TIMEOUTS
    from rdzv_plugins.kit.loop import in_thread as in_thread
    from rdzv_plugins.kit.loop import looked_at as looked_at
    from rdzv_plugins.kit.loop import within as within
    from rdzv_plugins.kit.reasons import HANGS_UP as HANGS_UP
    from rdzv_plugins.kit.reasons import NO_ANSWER as NO_ANSWER
    from rdzv_plugins.kit.reasons import SILENT as SILENT
    from rdzv_plugins.kit.reasons import Reason as Reason
    from rdzv_plugins.kit.reasons import Unusable as Unusable
    from rdzv_plugins.kit.reasons import answer_of as answer_of
    from rdzv_plugins.kit.reasons import network_reason as network_reason
    from rdzv_plugins.kit.reasons import unchecked_context as unchecked_context
    from rdzv_plugins.kit.security import Account as Account
    from rdzv_plugins.kit.security import Security as Security
    from rdzv_plugins.kit.security import TlsOptions as TlsOptions
    from rdzv_plugins.kit.security import parse_address as parse_address
    from rdzv_plugins.options import WorkerStoreOptions as WorkerStoreOptions
    from rdzv_plugins.plain_text import name_of as name_of
    from rdzv_plugins.security.certificates import warn_if_others_can_read as warn_if_others_can_read

_MODULES = {
    "security.certificates": "warn_if_others_can_read",
    "dynamic.options": "DynamicSettings",
    "elastic.options": "ElasticOptions validate_elastic",
    "kit.client": "ServiceClient SessionEnded",
    "kit.coordination": "Coordination coordination_backend",
    "kit.loop": "TIMEOUTS in_thread looked_at within",
    "kit.reasons": "HANGS_UP NO_ANSWER Reason SILENT Unusable answer_of network_reason unchecked_context",
    "kit.security": "Account Security TlsOptions parse_address",
    "options": "WorkerStoreOptions",
    "plain_text": "name_of",
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = list(_WHERE)

if not TYPE_CHECKING:  # which would take any name for one of ours

    def __getattr__(name: str) -> Any:
        # On first use: a plug-in's module, which every launch loads, takes its options from here and no more.
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"rdzv_plugins.{_WHERE[name]}"), name)
        globals()[name] = value
        return value
