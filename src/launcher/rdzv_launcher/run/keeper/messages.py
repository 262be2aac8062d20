"""What the agent asks its keeper for, and what it hears of it.

A keeper that replaces another one is an interpreter that has only our own packages and the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

NAME = "rdzv-keeper"
"""What the kernel calls the keeper, whose command line is that of its agent."""


class Start(NamedTuple):
    """One worker to start. ``environment`` is all of it; an empty path leaves a stream as the agent's own is."""

    local_rank: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stdout: str = ""
    stderr: str = ""


class Inherited(NamedTuple):
    """What workers get of the agent's own process, where it was made for one call from Python."""

    descriptors: tuple[int, ...] = ()
    """Open for them under the same numbers."""
    function: Callable[[int], int] | None = None
    """What they run instead of their commands, each a fork of the keeper, which then is one of the agent: it is given
    the local rank and returns the exit code."""


class Belongings(NamedTuple):
    """What is the agent's own, and what its keeper sees to when the agent cannot."""

    page: int = -1
    """The descriptor of a ``RoundPage``, by which the workers are paused while the agent stands still; -1: none."""
    mark: str = ""
    """Whatever carries it in its environment is ended when the agent is no more; empty: nothing."""
    directory: str = ""
    """Of an agent that is no more all but the logs of workers is removed; empty: there is none."""


class Preload(NamedTuple):
    """Modules that the workers' interpreter is to have imported before it is forked for each of them.

    ``command`` is that of the workers, ``environment`` what theirs have in common: with other values of variables that
    count when an interpreter or a library is loaded (``PYTHON*``, ``OMP_*``) a worker is started as a fresh
    interpreter. ``limit``, in seconds, is for the imports, and the longest that a start waits for them.
    """

    modules: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    limit: float = 60.0


class Ended(NamedTuple):
    """A worker has ended; ``exit_code`` is negative for a signal. They come in the order in which the workers ended."""

    local_rank: int
    pid: int
    exit_code: int


class Preloaded(NamedTuple):
    """The modules are imported. ``memory`` in KiB is the template's own part of it, ``seconds`` what it took."""

    modules: tuple[str, ...]
    memory: int
    seconds: float


class NotPreloaded(NamedTuple):
    """Workers are started as fresh interpreters, and why. Each reason comes once."""

    modules: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        names = ", ".join(self.modules)
        return f"workers start as fresh interpreters, without the preloaded {names}: {self.reason}"


class Lost(NamedTuple):
    """The keeper has ended and not been asked to: no worker lives any more, and no other event comes."""

    reason: str


Event = Ended | Preloaded | NotPreloaded | Lost
