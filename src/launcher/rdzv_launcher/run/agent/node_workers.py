"""The workers of this node, generation after generation: started by the supervisor, within the fence, with their
output.

A separate thread listens to the supervisor and puts what it hears into the agent's inbox, so the agent waits only
there.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rdzv_launcher.run.agent import events
from rdzv_launcher.run.agent.fence import Fence
from rdzv_launcher.run.agent.loop import Inbox
from rdzv_launcher.run.stacks.node import NodeStacks
from rdzv_launcher.run.stderr_tail import WorkerMonitor
from rdzv_launcher.run.supervisor import descendants
from rdzv_launcher.run.supervisor.descendants import Processes
from rdzv_launcher.run.supervisor.messages import Lost, Start, WorkerEnded
from rdzv_launcher.run.supervisor.supervisor import Supervisor
from rdzv_launcher.run.workers.failures import OomKills, cause_of
from rdzv_launcher.run.workers.output.output import WorkerOutput
from rdzv_launcher.run.workers.spec import WorkersSpec
from rdzv_launcher.run.workers.worker_group import WorkerGroup
from rdzv_plugins.errors import SupervisorLost
from rdzv_plugins.plain_text import printable, some
from rdzv_plugins.runtime import POLLIN, Runtime, Signals

if TYPE_CHECKING:
    from threading import Timer

logger = logging.getLogger(__name__)

_LOOK_S = 0.05
_LONGEST_LOOK_S = 1.0
"""How often to check whether what workers left behind has ended; longer while nobody waits for it."""
_STACKS_S = 10.0
"""How long before workers that do not end are killed their stacks are stored."""
_KILLED = -int(Signals.SIGKILL)
_LONGEST_COMMAND = 100


class NodeWorkers:
    """The workers of this node: starts and ends them. One per agent.

    Its methods are for the main thread, except ``tail``, ``notify`` and ``fenced``; none but ``close`` waits for a
    worker. It puts into the agent's inbox, from any thread: ``WorkerEnded`` for each worker and then ``GroupEnded``,
    both with the group's generation, whatever ended them, even if it was the end of their own parent; and ``Fenced``
    before the fence kills them.
    """

    def __init__(
        self,
        spec: WorkersSpec,
        supervisor: Supervisor,
        another_supervisor: Callable[[], Supervisor],
        fence: Fence,
        monitor: WorkerMonitor,
        output: WorkerOutput,
        stacks: NodeStacks,
        inbox: Inbox,
        starts: Callable[[WorkerGroup], Sequence[Start]],
        runtime: Runtime,
        processes: Processes = descendants,
        kills: OomKills | None = None,
    ) -> None:
        """``starts`` says what to start for a group; it may raise ``RdzvError``."""
        self._spec, self._supervisor, self._fence = spec, supervisor, fence
        self._another_supervisor, self._runtime, self._processes = another_supervisor, runtime, processes
        self._loss = ""
        """Why the supervisor is of no use any more, and the workers of the newest generation were ended with it."""
        self._monitor, self._output, self._inbox = monitor, output, inbox
        self._stacks = stacks
        self._storing: Timer | None = None
        self._store_at = 0.0
        self._starts = starts
        self._kills = kills or OomKills()
        self._lock = runtime.RLock()
        """Protects the supervisor, which is for one thread, and the attributes that follow."""
        self._generation = 0
        self._running: set[int] = set()
        self._sessions = set[int]()
        """The sessions of the newest generation: each worker leads one."""
        self._lives = False
        """The end of the newest generation, with what is in its sessions, has not been reported yet."""
        self._asked = False
        """Somebody waits for the end of the group."""
        self._background = False
        """What workers have started in sessions of its own is being ended, too."""
        self._fenced = False
        """The fence is killing the newest generation. Set by the fence's thread, without the lock."""
        self._look_at, self._pause = 0.0, _LOOK_S
        self._closed = False
        self._woken = runtime.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Tells the thread to look at once; the thread closes it."""
        self._thread = runtime.Thread(
            target=self._listen, name="rdzv-workers", on_error=lambda error: inbox.put(events.Failed(error))
        )
        self._thread.start()

    def start(self, group: WorkerGroup) -> Mapping[int, int]:
        """Start all workers of ``group``; returns their pids by local rank. Raises ``RdzvError``."""
        self._kills.begin()
        with self._lock:
            if self._loss:
                self._supervisor.close()
                self._supervisor, self._loss = self._another_supervisor(), ""
            self._fenced = False
            self._fence.starting()
            starts = self._starts(group)
            self._generation, self._running = group.generation, {each.local_rank for each in starts}
            self._lives, self._asked, self._background = True, False, False
            try:
                pids = self._supervisor.start(starts, generation=group.generation)
            except SupervisorLost as error:  # as at any other moment, it counts as a failure of its workers
                self._lose(str(error), error.exit_code)  # some may not have been started: nobody has killed those
                self._take()
                self._soon()
                return {}
            except BaseException:
                self._lives, self._running = False, set()
                raise
            self._sessions = {*pids.values()}
            self._fence.started(pids.values())
            self._monitor.opened()
            self._output.started(pids)
            self._take()  # those that ended while others were started
            self._wake()
        return pids

    def stop(self, number: Signals, seconds: float, background: bool = False) -> None:
        """Signal live workers, and what is left in their sessions; ``kill_all`` may follow after ``seconds``.

        ``background``: also what they have started in sessions of its own.
        """
        if not self._fence.stopping():  # they may not act any more, not even to end: they were killed
            number = Signals.SIGKILL
        with self._lock:
            if number != Signals.SIGKILL and self._lives:
                self._store_later(number, seconds)
            if self._running:
                logger.info("stopping the workers of this node (%s)", number.name)
            if background:
                self._name_background(number, seconds)
                self._background = self._lives = True
            self._supervisor.signal_left(number, daemons=background)
            self._soon()

    def _name_background(self, number: Signals, seconds: float) -> None:
        """Say what is about to be ended that no worker waits for. The caller holds the lock."""
        others = [
            pid
            for pid in self._supervisor.leftovers(daemons=True)
            if (found := self._processes.look(pid)) is not None and found.session not in self._sessions
        ]
        if others and not self._background:
            logger.warning(
                "the workers of this node left processes running in the background: %s; sending %s, and SIGKILL after "
                "%.0f s (--leave-background leaves them alone)",
                some(map(self._named, others)),
                number.name,
                seconds,
            )

    def notify(self, number: Signals) -> None:
        """Send the signal to live workers, which go on running. Any thread."""
        with self._lock, contextlib.suppress(SupervisorLost):
            if self._running:
                self._supervisor.signal(number)

    def _store_later(self, number: Signals, seconds: float) -> None:
        """Schedule storing the stacks of workers that this signal has not ended, some time before they are killed.

        The caller holds the lock.
        """
        lead = min(_STACKS_S, seconds / 2)
        due = self._runtime.monotonic() + seconds - lead
        if self._storing is not None:
            if self._storing.finished.is_set() or due >= self._store_at:
                return
            self._storing.cancel()  # they have less time than they were given before
        why = f"have not ended {seconds - lead:g} s after {number.name}"
        self._storing, self._store_at = self._runtime.Timer(seconds - lead, self._stacks.store, (why, lead)), due
        self._storing.daemon = True
        self._storing.start()

    def _store_no_more(self) -> None:
        """The workers have ended, so nothing is stored. The caller holds the lock."""
        if self._storing is not None:
            self._storing.cancel()
            self._storing = None

    def kill_all(self) -> None:
        """Send SIGKILL to everything that was started and still lives, wherever it is now."""
        with self._lock:
            self._take()  # those that ended by themselves
            self._soon()
            leave = self._spec.leave_background and not self._fenced
            if left := self._supervisor.kill_all(daemons=not leave):
                logger.warning("processes of this node's workers do not end: %s", some(map(self._named, left)))
            self._take()
            self._look()  # so that the agent hears of the end before its own limit is over, however long this took

    def tail(self, local_rank: int) -> tuple[str, ...]:
        """The last lines that a worker of the newest group wrote to stderr. Any thread."""
        return self._monitor.tail(local_rank)

    def cause(self, local_rank: int, exit_code: int) -> str:
        """What else is known about the end of a worker of the newest group, as a sentence; empty if nothing is."""
        return self._loss or cause_of(exit_code, self.tail(local_rank), self._kills)

    def fenced(self) -> None:
        """The fence is about to kill the workers: their ends are not failures. Any thread."""
        self._fenced = True
        self._inbox.put(events.Fenced())

    def signal_below(self, number: int) -> None:
        """Send the signal to live workers, and to everything that they started. Any thread; it waits for nobody."""
        self._supervisor.signal_below(number)

    def close(self) -> Sequence[int]:
        """End everything for good; returns the pids of processes that do not end."""
        with self._lock:
            self._wake()
            self._closed = True
            self._store_no_more()
            leave = self._spec.leave_background and not self._fenced
            spared = self._supervisor.leftovers(daemons=True) if leave else []
            left = self._supervisor.close(leave=leave)
        self._thread.join()
        with contextlib.ExitStack() as steps:  # in reverse order, each one even if another fails
            steps.callback(self._monitor.close)
            steps.callback(self._output.end)
            return sorted({*left, *self._fence.close(spared)})

    def _soon(self) -> None:
        """Note that the end of the group is waited for. The caller holds the lock."""
        self._asked, self._pause, self._look_at = True, _LOOK_S, 0.0
        self._wake()

    def _wake(self) -> None:
        """What the thread waits for has changed. The caller holds the lock."""
        if not self._closed:
            self._runtime.eventfd_write(self._woken, 1)

    def _listen(self) -> None:
        while True:
            poll = self._runtime.poll()
            poll.register(self._woken, POLLIN)
            with self._lock:
                if self._closed:
                    break
                if not self._loss:  # otherwise it would be readable for ever
                    poll.register(self._supervisor.fileno(), POLLIN)
                due = self._look_at - self._runtime.monotonic() if self._waits() else _LONGEST_LOOK_S
            poll.poll(min(max(0.0, due), _LONGEST_LOOK_S) * 1000)
            with contextlib.suppress(BlockingIOError):
                self._runtime.eventfd_read(self._woken)
            try:
                with self._lock:
                    if not self._closed:
                        self._take()
                        self._look()
            except Exception:  # the agent has to go on hearing about its workers, whatever went wrong
                logger.exception("error in the agent's thread for its workers")
                self._runtime.sleep(_LOOK_S)
        self._runtime.close(self._woken)

    def _waits(self) -> bool:
        return self._lives and not self._running

    def _take(self) -> None:
        """Pass on what the supervisor says to the agent. The caller holds the lock."""
        for event in self._supervisor.events():
            match event:
                case WorkerEnded():
                    self._ended(event)
                case Lost(reason):
                    logger.error("%s", reason)
                    self._lose(reason)

    def _lose(self, reason: str, exit_code: int = _KILLED) -> None:
        """The supervisor is of no use any more, and its workers are ended. The caller holds the lock."""
        if not self._loss:
            self._loss = f"{reason[0].upper()}{reason[1:]}."
        for local_rank in sorted(self._running):
            self._ended(WorkerEnded(self._generation, local_rank, exit_code))

    def _ended(self, event: WorkerEnded) -> None:
        if event.local_rank in self._running:
            self._running.discard(event.local_rank)
            self._output.ended(event.local_rank, event.exit_code, stopped=self._asked or self._fenced)
            self._inbox.put(event)
            self._look_at = 0.0

    def _look(self) -> None:
        """Tell the agent once nothing is left of the newest generation. The caller holds the lock."""
        if not self._waits() or self._runtime.monotonic() < self._look_at:
            return
        if self._supervisor.leftovers(daemons=self._background):
            self._look_at = self._runtime.monotonic() + self._pause
            self._pause = _LOOK_S if self._asked else min(2 * self._pause, _LONGEST_LOOK_S)
            return
        self._lives = False
        self._store_no_more()
        self._fence.stopped()
        self._output.end()
        self._inbox.put(events.GroupEnded(self._generation, self._background))

    def _named(self, pid: int) -> str:
        """A process, for people: its command and its pid, and its state if the kernel holds it."""
        found = self._processes.look(pid)
        held = ", state D" if found is not None and found.state == "D" else ""
        return f"{printable(self._processes.command(pid), _LONGEST_COMMAND) or 'a process'} (pid {pid}{held})"
