"""The processes of the simulated machines, as their kernels know them: pids, parents, signals, and who waits for whom.

A process with threads has a ``Process`` of the scheduler; a worker has none, and says itself what a signal does to it.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any

from rdzv_launcher.run.supervisor.descendants import Process as Seen
from rdzv_plugins.runtime import SIG_DFL, SIG_IGN, Signals
from simulation.network import Network
from simulation.scheduler import Process

_FIRST = 100
_INIT = 1
_UNSTOPPABLE = (Signals.SIGKILL, Signals.SIGSTOP)

Handler = Callable[[int, Any], object]


class Entry:
    """One process, until somebody has waited for it. Made by ``Processes``."""

    def __init__(self, pid: int, parent: int, session: int, command: str, thread_of: Process | None) -> None:
        self.pid, self.parent, self.session, self.command, self.process = pid, parent, session, command, thread_of
        self.state = "R"
        self.status: int | None = None
        """As ``os.waitpid`` returns it; None while it lives."""
        self.continued_at = 0.0
        self.reaps = False
        """What loses its parent below it becomes a child of it (PR_SET_CHILD_SUBREAPER)."""
        self.dies_with_parent: Signals | None = None
        self.handlers: dict[int, Handler | Signals] = {}
        self.pending: list[int] = []
        """Signals that wait for it to be continued, or to be released by the kernel."""
        self.on_signal: Callable[[int], object] | None = None
        """What a worker does about a signal; None: it dies of it."""
        self.on_end: Callable[[Entry], object] = lambda entry: None
        """Its parent hears of its end."""
        self.ended: Callable[[], object] = lambda: None
        """Somebody of the world wants to know."""

    @property
    def lives(self) -> bool:
        return self.state != "Z"


class Processes:
    """All of them. Pids are given once, over all machines."""

    def __init__(self, network: Network) -> None:
        self._network, self.scheduler = network, network.scheduler
        self.entries: dict[int, Entry] = {}
        self._pids = itertools.count(_FIRST)

    # What exists

    def add(
        self, parent: int = _INIT, *, command: str = "", session: int | None = None, thread_of: Process | None = None
    ) -> Entry:
        """A new process, in a session of its own if none is given."""
        pid = next(self._pids)
        made = self.entries[pid] = Entry(pid, parent, pid if session is None else session, command, thread_of)
        if thread_of is not None:
            thread_of.on_end.append(lambda: self.end(made, Signals.SIGKILL))
        return made

    def end(self, entry: Entry, status: int) -> None:
        """It ends: with an exit code times 256, or by a signal."""
        if not entry.lives:
            return
        entry.state, entry.status = "Z", status
        entry.ended()
        if entry.process is not None and not entry.process.killed:
            self._network.kill(entry.process)
        for child in [each for each in self.entries.values() if each.parent == entry.pid]:
            child.parent = self._reaper(entry)
            if child.lives and child.dies_with_parent is not None:
                self.signal(child, child.dies_with_parent)
            if not child.lives and child.parent == _INIT:
                self.entries.pop(child.pid, None)
        if entry.parent == _INIT or not self.entries[entry.parent].lives:
            self.entries.pop(entry.pid, None)
        else:
            entry.on_end(entry)

    def _reaper(self, entry: Entry) -> int:
        above = self.entries.get(entry.parent)
        while above is not None:
            if above.reaps and above.lives:
                return above.pid
            above = self.entries.get(above.parent)
        return _INIT

    # Signals

    def signal(self, entry: Entry, number: int) -> None:
        """A signal arrives."""
        if not entry.lives or number == 0:
            return
        if entry.state == "D":
            entry.pending.append(number)
        elif number == Signals.SIGSTOP:
            self._stop(entry)
        elif number == Signals.SIGCONT:
            self._go_on(entry)
        elif entry.state == "T" and number != Signals.SIGKILL:
            entry.pending.append(number)
        else:
            self._deliver(entry, number)

    def _stop(self, entry: Entry) -> None:
        if entry.state == "R":
            entry.state = "T"
            if entry.process is not None:
                self.scheduler.freeze(entry.process)
            elif entry.on_signal is not None:
                entry.on_signal(Signals.SIGSTOP)

    def _go_on(self, entry: Entry) -> None:
        if entry.state != "T":
            return
        entry.state, entry.continued_at = "R", self.scheduler.now
        if entry.process is not None:
            self.scheduler.thaw(entry.process)
        elif entry.on_signal is not None:
            entry.on_signal(Signals.SIGCONT)
        self._take_pending(entry)

    def release(self, entry: Entry) -> None:
        """The kernel holds it no longer (state D)."""
        if entry.state == "D":
            entry.state = "R"
            self._take_pending(entry)

    def _take_pending(self, entry: Entry) -> None:
        pending, entry.pending = entry.pending, []
        for number in pending:
            self.signal(entry, number)

    def _deliver(self, entry: Entry, number: int) -> None:
        handler = entry.handlers.get(number, SIG_DFL)
        if number in _UNSTOPPABLE:
            self.end(entry, number)
        elif entry.on_signal is not None:
            entry.on_signal(number)
        elif handler is SIG_DFL:
            self.end(entry, number)
        elif handler is not SIG_IGN:
            assert entry.process is not None
            self.scheduler.interrupt(entry.process, lambda: handler(number, None))  # type: ignore[operator]

    # Like the functions of ``supervisor/descendants``

    def look(self, pid: int) -> Seen | None:
        entry = self.entries.get(pid)
        if entry is None:
            return None
        return Seen(pid, entry.parent, entry.session, str(pid), entry.lives, entry.state)

    def children(self, parent: int) -> list[Seen]:
        found = (self.look(each.pid) for each in list(self.entries.values()) if each.parent == parent)
        return [each for each in found if each is not None]

    def descendants(self, roots: Collection[int]) -> list[Seen]:
        children = defaultdict[int, list[int]](list)
        for each in self.entries.values():
            children[each.parent].append(each.pid)
        below, pids = list(roots), list[int]()
        while below and children:
            pids += (new := children.pop(below.pop(), []))
            below += new
        return [seen for pid in pids if (seen := self.look(pid)) is not None and seen.lives]

    def send(self, process: Seen, number: int) -> bool:
        self.scheduler.check()
        entry = self.entries.get(process.pid)
        if entry is None or not entry.lives:
            return False
        self.signal(entry, number)
        return True

    def kill(self, roots: Collection[int]) -> list[int]:
        found = self.descendants(roots)
        for each in found:
            self.send(each, Signals.SIGKILL)
        return [each.pid for each in found]

    def command(self, pid: int) -> str:
        return self.entries[pid].command if pid in self.entries else ""


class OwnProcess:
    """What the standard library offers a process about itself, its children and others; see ``os`` and ``signal``."""

    def __init__(self, processes: Processes, entry: Entry) -> None:
        self._processes, self.entry = processes, entry
        self._alarms = 0

    def getpid(self) -> int:
        return self.entry.pid

    def getsid(self, pid: int) -> int:
        assert pid == 0
        return self.entry.session

    def kill(self, pid: int, number: int) -> None:
        self._send([each for each in self._all() if each.pid == pid], number)

    def killpg(self, group: int, number: int) -> None:
        """Groups are sessions here."""
        self._send([each for each in self._all() if each.session == group], number)

    def waitpid(self, pid: int, options: int) -> tuple[int, int]:
        assert options == os.WNOHANG
        found = [each for each in self._all() if each.parent == self.entry.pid and pid in (-1, each.pid)]
        if not found:
            raise ChildProcessError(errno.ECHILD, "No child processes")
        for each in found:
            if each.status is not None:
                del self._processes.entries[each.pid]
                return each.pid, each.status
        return 0, 0

    def waitid(self, kind: int, pid: int, options: int) -> object:
        assert kind == os.P_PID
        found = self._processes.entries.get(pid)
        if found is None or found.parent != self.entry.pid:
            raise ChildProcessError(errno.ECHILD, "No child processes")
        return None if found.lives else found

    def has_ended(self, pid: int) -> bool:
        found = self._processes.entries.get(pid)
        return found is None or not found.lives

    def signal(self, number: int, handler: Any) -> Any:
        before = self.getsignal(number)
        self.entry.handlers[int(number)] = handler
        return before

    def getsignal(self, number: int) -> Any:
        return self.entry.handlers.get(int(number), SIG_DFL)

    def setitimer(self, which: int, seconds: float) -> None:
        """ITIMER_REAL alone."""
        self._alarms += 1
        number, scheduler = self._alarms, self._processes.scheduler
        if seconds > 0:
            due = scheduler.now + scheduler.running.process.clock.lasts(seconds)
            scheduler.at(due, lambda: number == self._alarms and self._processes.signal(self.entry, Signals.SIGALRM))

    def _all(self) -> Collection[Entry]:
        self._processes.scheduler.check()
        return list(self._processes.entries.values())

    def _send(self, found: Iterable[Entry], number: int) -> None:
        living = [each for each in found if each.lives]
        if not living:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        for each in living:
            self._processes.signal(each, number)
