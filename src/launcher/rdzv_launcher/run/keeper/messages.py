"""What the agent asks its keeper for, and what it hears of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

NAME = "rdzv-keeper"
"""What the kernel calls the keeper, whose command line is that of its agent."""


@dataclass(frozen=True)
class Start:
    """One worker to start. ``environment`` is all of it; an empty path leaves a stream as the agent's own is."""

    local_rank: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True)
class Inherited:
    """What workers get of the agent's own process, where it was made for one call from Python."""

    descriptors: tuple[int, ...] = ()
    """Open for them under the same numbers."""
    function: Callable[[int], int] | None = None
    """What they run instead of their commands, each a fork of the keeper, which then is one of the agent: it is given
    the local rank and returns the exit code."""


@dataclass(frozen=True)
class Belongings:
    """What is the agent's own, and what its keeper sees to when the agent cannot."""

    page: int = -1
    """The descriptor of a ``RoundPage``, by which the workers are paused while the agent stands still; -1: none."""
    mark: str = ""
    """Whatever carries it in its environment is ended when the agent is no more; empty: nothing."""
    directory: str = ""
    """Of an agent that is no more all but the logs of workers is removed; empty: there is none."""


@dataclass(frozen=True)
class Preload:
    """Modules that the workers' interpreter is to have imported before it is forked for each of them.

    ``command`` is that of the workers, ``environment`` what theirs have in common: with other values of variables that
    count when an interpreter or a library is loaded (``PYTHON*``, ``OMP_*``) a worker is started as a fresh
    interpreter. ``limit``, in seconds, is for the imports, and the longest that a start waits for them.
    """

    modules: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    limit: float = 60.0


@dataclass(frozen=True)
class Ended:
    """A worker has ended; ``exit_code`` is negative for a signal. They come in the order in which the workers ended."""

    local_rank: int
    pid: int
    exit_code: int


@dataclass(frozen=True)
class Preloaded:
    """The modules are imported. ``memory`` in KiB is the template's own part of it, ``seconds`` what it took."""

    modules: tuple[str, ...]
    memory: int
    seconds: float


@dataclass(frozen=True)
class NotPreloaded:
    """Workers are started as fresh interpreters, and why. Each reason comes once."""

    modules: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        names = ", ".join(self.modules)
        return f"workers start as fresh interpreters, without the preloaded {names}: {self.reason}"


@dataclass(frozen=True)
class Lost:
    """The keeper has ended and not been asked to: no worker lives any more, and no other event comes."""

    reason: str


Event = Ended | Preloaded | NotPreloaded | Lost
