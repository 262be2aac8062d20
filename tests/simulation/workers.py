"""Simulated workers, and the supervisor that starts them: what ``run/supervisor`` is to an agent.

The agent's side of the channel is the real one; here is the other end, which answers the same messages. It ends when
its agent ends, and all workers with it.
"""

from __future__ import annotations

import errno
import select
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rdzv_launcher.run.supervisor.descendants import Process as Seen
from rdzv_launcher.run.supervisor.messages import Channel, Gone, Inherited, OwnedResources
from rdzv_launcher.run.supervisor.supervisor import BEAT_S
from rdzv_launcher.run.supervisor.supervisor_process import FrozenAgentWatchdog
from rdzv_plugins.runtime import Signals
from rdzv_plugins.shared_numbers import BEAT, PAUSE_AT, STILL
from simulation.kernel import Kernel
from simulation.processes import Entry, Processes
from simulation.scheduler import Process

_START_S = 0.01
_LOOK_S = 0.02


@dataclass(frozen=True)
class Does:
    """What a worker does when it is started. ``runs`` may be infinite: it hangs, or serves."""

    runs: float = 10.0
    code: int = 0
    """Its exit code after that; negative for a signal."""
    ends_in: float | None = 0.1
    """Seconds from SIGTERM, or another signal that ends it, to its end; None: it ignores them."""
    stuck: bool = False
    """The kernel does not release it: it does not even end by SIGKILL."""
    background: Does | None = None
    """What it leaves running in a session of its own."""
    child: Does | None = None
    """What it leaves running in its own session."""
    fails_to_start: bool = False


class Worker:
    """One worker, from its start to its end."""

    def __init__(self, processes: Processes, parent: int, does: Does, name: str) -> None:
        self._processes, self._scheduler, self.does = processes, processes.scheduler, does
        self.entry = processes.add(parent, command=name)
        self.entry.on_signal = self._on_signal
        self.entry.dies_with_parent = Signals.SIGKILL
        self.signals: list[int] = []
        """All that it got."""
        self.has_failed = False
        """It has ended by itself, and not with 0."""
        self._left = does.runs
        self.entered = self._scheduler.now
        self._runs_from = self._scheduler.now
        self._number = 0
        self._ends: int | None = None
        self.left: list[Worker] = []
        """What it leaves running: in a session of its own, and in its own."""
        for kind, session in ((does.background, None), (does.child, self.entry.session)):
            if kind is not None:
                left = Worker(processes, self.entry.pid, kind, f"{name}'s")
                left.entry.dies_with_parent = None
                if session is not None:
                    left.entry.session = session
                self.left.append(left)
        self._go(does.runs)

    def _go(self, seconds: float) -> None:
        self._number += 1
        number, self._runs_from, self._left = self._number, self._scheduler.now, seconds
        if seconds < float("inf"):
            self._scheduler.at(self._scheduler.now + seconds, lambda: number == self._number and self._end())

    def _end(self) -> None:
        code = self.does.code
        self.has_failed = code != 0 and self._ends is None
        if self._ends is not None:
            code = -int(self._ends)
        self._processes.end(self.entry, code * 256 if code >= 0 else -code)

    @property
    def told(self) -> bool:
        """It has been told to end."""
        return self._ends is not None or (self.does.ends_in is None and Signals.SIGTERM in self.signals)

    def fail_with(self) -> None:
        """Another worker of its round has ended: so does it, if it runs."""
        if self.entry.state == "R" and self._ends is None:
            self._processes.end(self.entry, 256)

    def _on_signal(self, number: int) -> None:
        self.signals.append(number)
        if number == Signals.SIGSTOP:
            self._number += 1
            self._left -= self._scheduler.now - self._runs_from
        elif number == Signals.SIGCONT:
            self._go(max(0.0, self._left))
        elif self.does.ends_in is not None and self._ends is None:
            self._ends = number
            self._go(self.does.ends_in)


class Supervisor:
    """One process, as ``supervisor_process.SupervisorProcess`` is. Made by ``Machine.start``."""

    def __init__(
        self,
        machine: Machine,
        process: Process,
        entry: Entry,
        agent: Entry,
        channel: Channel,
    ) -> None:
        self._machine, self._scheduler, self._agent = machine, machine.processes.scheduler, agent
        self.process, self.entry, self._channel = process, entry, channel
        self._processes = machine.processes
        self._workers: dict[int, tuple[int, int]] = {}
        """Of each live worker its number of start and its local rank, by pid."""
        self._ended: list[Entry] = []
        self._sessions: set[int] = set()
        self._failed: set[int] = set()
        self._killing: tuple[int, float, bool, int] | None = None
        self._running, self._leaves = True, False
        page = machine.page
        self._frozen = FrozenAgentWatchdog(
            lambda: page,
            lambda: self._signal_below(Signals.SIGSTOP),
            self._processes.send,
            lambda: int(process.clock.read() * 1e9),
        )
        self._news = 0

    def run(self) -> None:
        kernel, poll = self._machine.kernel, self._machine.kernel.poll()
        self._news = kernel.eventfd(0, 0)
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(self._news, select.POLLIN)
        while self._running and self._agent.lives:
            pause = _LOOK_S if self._killing else self._pause()
            ready = [fd for fd, _ in poll.poll(-1 if pause < 0 else pause * 1000)]
            if self._news in ready:
                kernel.eventfd_read(self._news)
            if self._channel.fileno() in ready:
                self._hear()
            self._tell_ends()
            self._frozen.look()
            self._kill_on()
        for pid in list(self._workers):
            self._processes.signal(self._entry(pid), Signals.SIGKILL)
        if not self._leaves:
            for _ in range(2):
                self._processes.kill([self.entry.pid])
                self._scheduler.sleep(_LOOK_S)
        self._scheduler.at(self._scheduler.now, lambda: self._processes.end(self.entry, 0))

    def _pause(self) -> float:
        """Until the agent may stand still: no machine sleeps here, and it need not look more often than it is asked."""
        pause, page = self._frozen.pause(), self._machine.page
        due = max(page[PAUSE_AT], page[BEAT] + page[STILL]) / 1e9 - self.process.clock.read()
        return max(pause, min(due, BEAT_S)) if pause > 0 else pause

    def _entry(self, pid: int) -> Entry:
        return self._processes.entries[pid]

    def _hear(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                getattr(self, f"_on_{message[0]}")(*message[1:])
        except Gone:
            self._running = False

    def _tell(self, *message: object) -> None:
        try:
            self._channel.send(message)
        except Gone:
            self._running = False

    def _on_close(self, leave: bool) -> None:
        self._running, self._leaves = False, leave

    def _on_beat(self) -> None:
        self._tell("beat")

    def _on_start(self, number: int, workers: list[tuple[int, tuple[str, ...], dict[str, str], str, str]]) -> None:
        self._sessions = set(self._workers)
        for local_rank, command, *_ in workers:
            if number in self._failed:
                return
            self._scheduler.sleep(_START_S)
            does = self._machine.plans.pop(command[0])
            if does.fails_to_start or self._machine.disk_is_full:
                what = ("stdout", errno.ENOSPC) if self._machine.disk_is_full else ("exec", errno.ENOENT)
                self._failed.add(number)
                self._tell("not_started", number, local_rank, *what)
                return
            worker = Worker(self._processes, self.entry.pid, does, command[0])
            worker.entry.on_end = self._hear_of_end
            if does.stuck:
                worker.entry.state = "D"
            self._workers[worker.entry.pid] = number, local_rank
            self._sessions.add(worker.entry.pid)
            self._machine.started(worker, command[0])
            self._tell("started", number, local_rank, worker.entry.pid)

    def _on_signal(self, number: int) -> None:
        for pid in self._workers:
            for each in list(self._processes.entries.values()):
                if each.session == pid:
                    self._processes.signal(each, number)

    def _on_signal_below(self, number: int) -> None:
        self._signal_below(number)

    def _signal_below(self, number: int) -> list[Seen]:
        return [each for each in self._processes.descendants([self.entry.pid]) if self._processes.send(each, number)]

    def _on_signal_left(self, request: int, number: int, daemons: bool) -> None:
        sent = [each.pid for each in self._below(daemons) if number == 0 or self._processes.send(each, number)]
        self._tell("left", request, sent)

    def _below(self, daemons: bool) -> list[Seen]:
        found = self._processes.descendants([self.entry.pid])
        return [each for each in found if daemons or each.session in self._sessions]

    def _on_kill(self, request: int, limit: float, daemons: bool) -> None:
        self._failed |= {number for number, _ in self._workers.values()}
        self._on_signal(Signals.SIGKILL)
        self._killing = request, self._scheduler.now + limit, daemons, 0

    def _kill_on(self) -> None:
        if self._killing is None:
            return
        request, deadline, daemons, quiet = self._killing
        left = self._below(daemons)
        for each in left:
            self._processes.send(each, Signals.SIGKILL)
        quiet = 0 if left else quiet + 1
        self._killing = request, deadline, daemons, quiet
        if quiet > 1 or self._scheduler.now > deadline:
            self._killing = None
            self._tell_ends()
            self._tell("left", request, [each.pid for each in left])

    def _hear_of_end(self, entry: Entry) -> None:
        """Called by nothing but the world."""
        self._ended.append(entry)
        if self._news in self._machine.kernel.open:
            self._machine.kernel.eventfd_write(self._news, 1)

    def _tell_ends(self) -> None:
        ended, self._ended = self._ended, []
        for entry in ended:
            _, local_rank = self._workers.pop(entry.pid)
            self._processes.entries.pop(entry.pid, None)
            assert entry.status is not None
            code = entry.status >> 8 if not entry.status & 0x7F else -(entry.status & 0x7F)
            self._tell("ended", local_rank, code)


class Machine:
    """What one agent has of its machine: starts its supervisors, and knows what its workers are to do."""

    def __init__(self, processes: Processes, kernel: Kernel, page: Any, name: str) -> None:
        self.processes, self.kernel, self.page, self.name = processes, kernel, page, name
        self.plans: dict[str, Does] = {}
        self.disk_is_full = False
        """No file of a worker's output can be opened."""
        self.supervisors: list[Supervisor] = []
        self.workers: list[Worker] = []
        """All that were ever started, in order."""
        self.on_start: Callable[[Worker, str], object] = lambda worker, name: None

    def start(self, agent: Entry) -> Callable[[Channel, Iterable[int], Inherited, OwnedResources], int]:
        """Like ``start_supervisor``, for this agent."""

        def make(theirs: Channel, ignored: Iterable[int], inherited: Inherited, owned: OwnedResources) -> int:
            scheduler = self.processes.scheduler
            name = f"{self.name}.supervisor{len(self.supervisors) or ''}"
            assert agent.process is not None
            agent.reaps = True
            process = scheduler.process(name, agent.process.host)
            entry = self.processes.add(agent.pid, command=name, thread_of=process)
            entry.reaps, entry.dies_with_parent = True, Signals.SIGCONT
            self.kernel.open[theirs.fileno()].held_by(process)  # type: ignore[attr-defined]
            supervisor = Supervisor(self, process, entry, agent, theirs)
            self.supervisors.append(supervisor)
            scheduler.spawn(process, "main", supervisor.run)
            return entry.pid

        return make

    def started(self, worker: Worker, name: str) -> None:
        self.workers.append(worker)
        self.on_start(worker, name)

    @property
    def supervisor(self) -> Supervisor:
        """The newest."""
        return self.supervisors[-1]
