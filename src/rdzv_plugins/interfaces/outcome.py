"""How a failed worker ended, and how a node's part in the job ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Failure:
    """The end of a failed worker. ``exit_code`` is negative for a signal, as in ``subprocess``. Immutable."""

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
    """Anything else that is known about its end, as a sentence, for example an out-of-memory kill. May be empty."""

    hang: str = ""
    """Where the worker stood, starting with a verb, if it differed from the others in a job that hung. Then it had not
    ended, and ``exit_code`` is that of ``JobHung``. Empty: it ended by itself.
    """

    @property
    def process_exit_code(self) -> int:
        """The exit code that a shell would report: the code itself, or 128+n for signal n."""
        return 128 - self.exit_code if self.exit_code < 0 else self.exit_code


@dataclass(frozen=True)
class Outcome:
    """How this node's part in the job ended. Immutable.

    ``done``: its workers succeeded. ``failed``: restarts are used up, the job is over for everybody. ``lost``: the node
    leaves (a signal, an error of its own), and the others may go on without it.
    """

    end: Literal["done", "failed", "lost"]
    reason: str = ""
    """A sentence, for the others and for the log."""
    failure: Failure | None = None
    """The worker that failed first on any node, if one did."""
    why: str = ""
    """Why the job failed although restarts were left, as a sentence; empty if none were left."""
    exit_code: int = 0
    """The exit code of every node of the job; 0: that of ``failure``."""
