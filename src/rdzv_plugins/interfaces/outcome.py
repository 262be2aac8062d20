"""How a worker ended that failed, and how a node's part in the job ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Failure:
    """One worker's end. ``exit_code`` is negative for a signal, as in ``subprocess``. Any thread may have it."""

    node_rank: int
    """The rank, in the round that failed, of the node on which the worker ran; ``host`` is that node's name."""
    host: str
    global_rank: int
    local_rank: int
    pid: int
    exit_code: int
    stderr: tuple[str, ...] = ()
    """The last lines of its standard error, at most a few kilobytes."""
    cause: str = ""
    """What is known beyond its end and its last lines, a sentence: an out-of-memory kill, say. Empty: nothing is."""

    hang: str = ""
    """Of a worker that was found to be different in a job that hangs: where it stood, a verb first. It had not ended
    then, and ``exit_code`` is that of ``JobHung``. Empty: it has ended by itself."""

    @property
    def process_exit_code(self) -> int:
        """The exit code that a shell would report: the code itself, or 128+n for signal n."""
        return 128 - self.exit_code if self.exit_code < 0 else self.exit_code


@dataclass(frozen=True)
class Outcome:
    """How this node's part in the job ended. Any thread may have it.

    ``done``: its workers succeeded. ``failed``: restarts are used up, the job is over for everybody.
    ``lost``: the node goes (a signal, an error of its own), the others may go on without it.
    """

    end: Literal["done", "failed", "lost"]
    reason: str = ""
    """A sentence, for the others and for the log."""
    failure: Failure | None = None
    """The worker that failed first over all nodes, if one did."""
    why: str = ""
    """Why the job has failed although restarts were left, a sentence; empty if none was."""
    exit_code: int = 0
    """What every node of a job that has ended so ends with; 0: the code of ``failure``."""
