"""What the agent's loop works with, besides the rendezvous: what starts the workers, tells them, and is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rdzv_launcher.run.agent.decisions import Decisions
from rdzv_launcher.run.agent.events import Event
from rdzv_launcher.run.agent.steps import Step
from rdzv_launcher.run.workers.worker_group import WorkerGroup
from rdzv_plugins.runtime import Signals


class Workers(Protocol):
    """Starts and ends the workers of this node. Called by the main thread; no method waits for a worker.

    It puts into the agent's inbox, from any thread: ``WorkerEnded`` for each worker and then ``GroupEnded``, both with
    the group's generation, whatever ended them, even if it was the end of their own parent; and ``Fenced`` before the
    fence kills them.
    """

    def start(self, group: WorkerGroup) -> Mapping[int, int]:
        """Start all workers of ``group``; returns their pids by local rank. The group's generation is new.

        If it raises, this node ends. ``kill_all`` follows, and then nothing of the group is left to report.
        """
        ...

    def stop(self, number: Signals, seconds: float, background: bool = False) -> None:
        """Signal live workers, and what is left in their sessions; ``kill_all`` may follow after ``seconds``.

        ``background``: also what they have started in sessions of its own. ``GroupEnded`` follows, even if there is
        nothing.
        """
        ...

    def kill_all(self) -> None:
        """Send SIGKILL to everything that was started and still lives, wherever it is now."""
        ...

    def tail(self, local_rank: int) -> tuple[str, ...]:
        """The last lines that a worker of the newest group wrote to stderr. Any thread."""
        ...

    def cause(self, local_rank: int, exit_code: int) -> str:
        """What else is known about the end of a worker of the newest group, as a sentence; empty if nothing is."""
        ...

    def close(self) -> Sequence[int]:
        """End everything that was started, for good; may wait some seconds. Returns the pids of what does not end."""
        ...


class Notices(Protocol):
    """Tells the workers of all nodes that this one is leaving soon. Puts ``NoticeAnswered`` into the agent's inbox."""

    def give(self, reason: str, seconds: float) -> None:
        """This node leaves, for ``reason``, and workers have ``seconds`` to save. Returns at once; called only once."""
        ...


class NoNotices:
    """Stands in where there are no notices: nobody is told."""

    def give(self, reason: str, seconds: float) -> None:
        """Do nothing."""


class Observer:
    """Is told what the agent hears, decides and does. Methods return at once and never raise. These do nothing.

    ``group``: the workers of the newest round; None before the first.
    """

    def heard(self, event: Event, group: WorkerGroup | None) -> None:
        """``event`` is about to be decided on."""

    def decided(self, event: Event, decisions: Decisions) -> None:
        """``event`` has been decided on; the resulting steps are about to be taken."""

    def takes(self, step: Step, group: WorkerGroup | None) -> None:
        """``step`` is about to be taken."""

    def started(self, group: WorkerGroup) -> None:
        """The workers of ``group`` are running; the group contains their pids."""
