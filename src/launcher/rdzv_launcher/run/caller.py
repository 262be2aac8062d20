"""A launch's caller in Python: what the workers get from it besides their program, and what it hears at the end."""

from __future__ import annotations

import signal
from typing import Any, Protocol

from msgspec import Struct

from rdzv_launcher.run.keeper.messages import Inherited
from rdzv_launcher.run.workers.failures import WorkerFailure
from rdzv_launcher.run.workers.worker_group import WorkerGroup
from rdzv_plugins.interfaces import Failure


class Ending(Struct, frozen=True):
    """How a launch ended: by a failure, an error or a signal, or with success."""

    group: WorkerGroup | None
    """The last workers of this node; None if it has had none."""
    failures: tuple[WorkerFailure, ...]
    """The failures of this node's workers that were not told to stop, in the order in which they ended."""
    first: Failure | None
    """The first failure over all nodes."""
    text: str
    """The first failure, in a sentence."""
    error: Exception | None
    signal: signal.Signals | None


class Caller(Protocol):
    """The caller of one launch, as the launch sees it."""

    inherited: Inherited
    logs_specs: Any
    """An object of torch's ``LogsSpecs``, in place of --logs-specs; None: there is none."""

    def ended(self, ending: Ending) -> None:
        """The launch has ended. The workers' error files are still there."""
        ...
