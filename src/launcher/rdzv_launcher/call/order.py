"""What the process of a launch is asked for, and what it answers: values that are pickled."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from rdzv_launcher.run.workers.failures import WorkerFailure
from rdzv_plugins.errors import RdzvError


class Order(Struct, frozen=True):
    """What the process of one launch is told: the function, its arguments and its settings."""

    arguments: tuple[str, ...]
    """The command line, without the program's name."""
    directory: str
    """Where the answer goes, and what belongs to the call."""
    caller: int
    """Its pid: the launch ends with it."""
    descriptors: tuple[int, ...] = ()
    """Those that the workers are to have."""
    command: tuple[str, ...] = ()
    """What workers run whose function is spawned; else empty."""
    forkserver: tuple[str, ...] = ()
    """The modules that are imported before such workers are forked; empty: they are not forked."""
    prefix_template: str = ""
    logs_specs: bytes = b""
    """Somebody's own object that decides on the log files, pickled."""
    path: tuple[str, ...] = ()
    """``sys.path`` of the caller: its plug-ins are found there."""

    @property
    def answer(self) -> str:
        """The file of the ``Answer``."""
        return f"{self.directory}/answer"

    @property
    def results(self) -> str:
        """The directory of the workers' ``Results``."""
        return f"{self.directory}/results"


class Answer(Struct, frozen=True):
    """How a launch ended, as its caller is told."""

    pids: Mapping[int, int] = field(default_factory=dict)
    """Of the workers that have succeeded, by global rank."""
    failures: Mapping[int, WorkerFailure] = field(default_factory=dict)
    """By global rank, in the order in which they ended."""
    first: int | None = None
    """The rank of the first of them."""
    first_here: bool = False
    """It is one of this node."""
    text: str = ""
    """The first failure in a sentence."""
    error: RdzvError | None = None
    """What ended the launch, where it was not a worker."""
    signal: int = 0
    """That has stopped it; 0: none."""
    notices: tuple[int, ...] = ()
    """The signals that were a notice, and so have not stopped it."""
