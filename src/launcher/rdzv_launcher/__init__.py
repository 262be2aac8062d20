"""``rdzv-run``, the launcher, and the ``rdzv`` tools around it; and ``elastic_launch``, a launch from Python.

The public names are in ``__all__``. They are imported on first use: the commands do not need them.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as in ``rdzv_plugins``
if TYPE_CHECKING:
    from typing import Any

    from rdzv_launcher.python_api.config import DefaultLogsSpecs as DefaultLogsSpecs
    from rdzv_launcher.python_api.config import LaunchConfig as LaunchConfig
    from rdzv_launcher.python_api.launching import elastic_launch as elastic_launch
    from rdzv_launcher.python_api.results import AgentLost as AgentLost
    from rdzv_launcher.python_api.results import LaunchStopped as LaunchStopped
    from rdzv_launcher.python_api.results import ResultLost as ResultLost
    from rdzv_launcher.python_api.results import WorkersFailed as WorkersFailed
    from rdzv_launcher.python_api.results import WorkerTraceback as WorkerTraceback
    from rdzv_launcher.run.workers.failures import WorkerFailure as WorkerFailure
    from rdzv_launcher.run.workers.spec import Std as Std

_PLACES = {
    "AgentLost": "python_api.results",
    "DefaultLogsSpecs": "python_api.config",
    "LaunchConfig": "python_api.config",
    "LaunchStopped": "python_api.results",
    "ResultLost": "python_api.results",
    "Std": "run.workers.spec",
    "WorkerFailure": "run.workers.failures",
    "WorkerTraceback": "python_api.results",
    "WorkersFailed": "python_api.results",
    "elastic_launch": "python_api.launching",
}
__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
