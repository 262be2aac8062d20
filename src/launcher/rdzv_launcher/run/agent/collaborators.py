"""What the agent's loop works with: the rendezvous, and whoever starts the workers."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Protocol

from rdzv_launcher.run.agent.decisions import Decisions
from rdzv_launcher.run.agent.events import Event
from rdzv_launcher.run.agent.exit_barrier import KnowsOthers
from rdzv_launcher.run.agent.steps import Step
from rdzv_launcher.run.workers.worker_group import WorkerGroup
from rdzv_plugins.interfaces import Failure, Outcome, RendezvousInfo


class Rendezvous(KnowsOthers, Protocol):
    """The part of ``HostedHandler`` that the agent uses. From the main thread, but for ``note_failure``."""

    def get_run_id(self) -> str: ...

    def next_rendezvous(self) -> RendezvousInfo: ...

    def num_nodes_waiting(self) -> int: ...

    def note_failure(self, failure: Failure) -> None: ...

    def first_failure(self) -> Failure | None: ...

    def count_restart(self, note: str) -> Sequence[str] | None: ...

    def note_leaving(self, reason: str) -> None: ...

    def lost_peers(self) -> Sequence[str]: ...

    def stay(self) -> None: ...

    def leave(self, outcome: Outcome) -> None: ...

    def shutdown(self) -> bool: ...


class Workers(Protocol):
    """Starts and ends the workers of this node. Called by the main thread; none of it waits for a worker.

    It puts into the agent's inbox, from any thread: ``WorkerEnded`` for each worker and then ``GroupEnded``, both with
    the group's generation, whatever has ended them, the end of their own parent included; and ``Fenced`` before the
    fence kills them.
    """

    def start(self, group: WorkerGroup) -> Mapping[int, int]:
        """Start all workers of ``group``; returns their pids by local rank. Its generation is new.

        What it raises ends this node. ``kill_all`` follows, and then nothing of the group is left to be told of.
        """
        ...

    def stop(self, number: signal.Signals, seconds: float) -> None:
        """Send it to the workers that live, and to what is left in their sessions: ``kill_all`` may follow so soon."""
        ...

    def kill_all(self) -> None:
        """SIGKILL for all that was started and lives, wherever it is now."""
        ...

    def tail(self, local_rank: int) -> tuple[str, ...]:
        """The last lines that a worker of the newest group wrote to stderr. Any thread."""
        ...

    def cause(self, local_rank: int, exit_code: int) -> str:
        """What is known of a worker's end beyond that, a sentence; empty if nothing is. Its group is the newest."""
        ...

    def close(self) -> Sequence[int]:
        """End for good, all that was started included; may wait some seconds. Returns the pids of what does not end."""
        ...


class Notices(Protocol):
    """Tells the workers of all nodes that this one is about to go. Puts ``NoticeAnswered`` into the agent's inbox."""

    def give(self, reason: str, seconds: float) -> None:
        """This node goes, for ``reason``, and workers have ``seconds`` to save. Returns at once; called once."""
        ...


class NoNotices:
    """Notices where there are none: nobody is told."""

    def give(self, reason: str, seconds: float) -> None:
        """Do nothing."""


class Observer:
    """Is told what the agent hears, decides and does. Returns at once, and raises nothing. Here it does nothing.

    ``group``: the workers of the newest round; None before the first.
    """

    def heard(self, event: Event, group: WorkerGroup | None) -> None:
        """``event`` is about to be decided upon."""

    def decided(self, event: Event, decisions: Decisions) -> None:
        """``event`` was decided upon; its steps are about to be taken."""

    def takes(self, step: Step, group: WorkerGroup | None) -> None:
        """``step`` is about to be taken."""

    def started(self, group: WorkerGroup) -> None:
        """The workers of ``group`` run, with their pids in it."""
