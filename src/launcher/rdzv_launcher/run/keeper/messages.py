"""What the agent asks of its keeper, and what it hears from it.

A keeper that replaces another one is an interpreter that has only our own packages and the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

NAME = "rdzv-keeper"
"""The kernel's name for the keeper, whose command line is its agent's."""


class Start(NamedTuple):
    """One worker to start. ``environment`` is complete; an empty path leaves a stream the same as the agent's own."""

    local_rank: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stdout: str = ""
    stderr: str = ""
    number: int = 0
    """For the keeper: that of the start of several workers to which this one belongs."""


class Inherited(NamedTuple):
    """What workers inherit from the agent's own process, if that was created for one call from Python."""

    descriptors: tuple[int, ...] = ()
    """Descriptors that are open in the workers under the same numbers."""
    function: Callable[[int], int] | None = None
    """What the workers run instead of their commands. Each is a fork of the keeper, which then is a fork of the agent.
    The function is given the local rank and returns the exit code.
    """


class Belongings(NamedTuple):
    """What belongs to the agent, and is left to its keeper when the agent cannot see to it."""

    page: int = -1
    """The descriptor of a ``RoundPage``, used to pause the workers while the agent stands still; -1: none."""
    mark: str = ""
    """Whatever carries this mark in its environment is ended when the agent has ended; empty: nothing."""
    directory: str = ""
    """Once the agent has ended, everything in here but the logs of workers is removed; empty: there is none."""


class Preload(NamedTuple):
    """Modules that the workers' interpreter should import before it is forked for each of them.

    ``command`` is that of the workers, ``environment`` what their environments have in common. A worker with other
    values of variables that matter when an interpreter or a library is loaded (``PYTHON*``, ``OMP_*``) is started as a
    fresh interpreter. ``limit``, in seconds, applies to the imports, and is the longest that a start waits for them.
    """

    modules: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    limit: float = 60.0


class WorkerEnded(NamedTuple):
    """A worker has ended: said once of each, in the order in which they ended, and to whoever has to know of it."""

    generation: int
    """That of the ``start`` that it belongs to."""
    local_rank: int
    exit_code: int
    """Negative for a signal, as in ``subprocess``."""


class Preloaded(NamedTuple):
    """The modules are imported. ``memory`` in KiB is the template's own share, ``seconds`` the time it took."""

    modules: tuple[str, ...]
    memory: int
    seconds: float


class NotPreloaded(NamedTuple):
    """Workers are started as fresh interpreters, and why. Each reason is reported once."""

    modules: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        names = ", ".join(self.modules)
        return f"workers start as fresh interpreters, without the preloaded {names}: {self.reason}"


class Lost(NamedTuple):
    """The keeper has ended without being asked to: no worker lives any more, and no other event follows."""

    reason: str


Event = WorkerEnded | Preloaded | NotPreloaded | Lost
