"""What is asked of the process of a launch, and what it answers: values that are pickled."""

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
    """The directory for the answer, and for everything that belongs to the call."""
    caller: int
    """The caller's pid: the launch ends with it."""
    descriptors: tuple[int, ...] = ()
    """The descriptors that the workers need."""
    command: tuple[str, ...] = ()
    """The command of workers whose function is spawned; otherwise empty."""
    forkserver: tuple[str, ...] = ()
    """The modules that are imported before such workers are forked; empty: they are not forked."""
    prefix_template: str = ""
    logs_specs: bytes = b""
    """A third-party object that decides on the log files, pickled."""
    path: tuple[str, ...] = ()
    """``sys.path`` of the caller, where its plug-ins are found."""

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
    """The pids of the workers that have succeeded, by global rank."""
    failures: Mapping[int, WorkerFailure] = field(default_factory=dict)
    """The failures by global rank, in the order in which the workers ended."""
    first: int | None = None
    """The rank of the first failure."""
    first_here: bool = False
    """Whether the first failure is on this node."""
    text: str = ""
    """The first failure in a sentence."""
    error: RdzvError | None = None
    """What ended the launch, if it was not a worker."""
    signal: int = 0
    """The signal that stopped it; 0: none."""
    notices: tuple[int, ...] = ()
    """The signals that were a notice, and so did not stop it."""
