"""Processes and their threads in simulated time: one thread runs at a time, and a seed decides which.

A thread is a greenlet. It runs until it waits for something, or until a point where the system could have put another
in its place. Time stands still meanwhile, and moves on to the next event only when no thread can run. So a run with the
same seed is the same run, and an hour in which a job waits costs nothing.

After FoundationDB's simulator and Rust's madsim: everything that the program does not determine comes from the seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import greenlet

_PAUSES = 0.2
"""How often a thread is put aside where that is possible."""
_UNENDING = 10_000
"""How often a killed thread may try to go on before that is taken for a fault of the program."""
_MOST_AT_ONCE = 500_000
"""How much threads may do while time stands still."""
_MOST_STEPS = 250_000
"""How much may happen until what is waited for: a long job takes some 10,000 steps."""
_LATE_S = 1e-9
"""A timer ends late, and never early: whoever looks at a clock that is not exact would wait again, for nothing."""
_ONLY_THREADS = "only threads can wait: this is called by what happens by itself"


class Killed(BaseException):
    """Ends the threads of a killed process, whatever they wait for. What they still do has no effect on others."""


class Spins(BaseException):
    """Ends a thread that goes on and on, and waits for nothing."""


class Stuck(Exception):
    """Nothing is left to happen, or not in time."""


class Clock:
    """A host's own, in seconds: it may run too fast, or too slowly. See ``Scheduler.drift``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.rate, self.ahead = 1.0, 0.0

    def read(self) -> float:
        return self._scheduler.now * self.rate + self.ahead

    def lasts(self, seconds: float) -> float:
        """How long that many of its seconds last."""
        return seconds if self.rate == 1.0 else seconds / self.rate + _LATE_S


class Process:
    """What is killed and stands still as a whole. Made by ``Scheduler.process``."""

    def __init__(self, name: str, host: str, clock: Clock) -> None:
        self.name, self.host, self.clock = name, host, clock
        self.killed = self.frozen = False
        self.threads: list[Thread] = []
        self.held: list[Thread] = []
        """The threads that could run if it were not frozen."""
        self.on_thaw: list[Callable[[], None]] = []
        """What has come to it by itself while it was frozen."""
        self.on_end: list[Callable[[], object]] = []
        """What its kernel does when it has ended."""

    def __repr__(self) -> str:
        return self.name


class Thread:
    """One thread of a process. Made by ``Scheduler.spawn``."""

    def __init__(self, process: Process, name: str, ident: int) -> None:
        self.process, self.name, self.ident = process, name, ident
        self.done = False
        self.joining: list[Thread] = []
        self.waits_in: list[Thread] | None = None
        """The list of waiters that it is in."""
        self.timer = 0
        """The event that ends its wait, by its number: that of an earlier wait means nothing."""
        self.woken = False
        self.refused = 0
        self.interrupts: list[Callable[[], object]] = []
        """What its signal handlers are about to do."""
        self.greenlet: Any = None

    def __repr__(self) -> str:
        return f"{self.process}/{self.name}"


class Scheduler:
    """The clock, the processes, and what happens next. Used by the greenlet that has made it, and by its threads.

    ``now`` is in seconds. It does not start at 0: only durations count.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._chance = self.random.random
        self.now = 1000.0
        self.current: Thread | None = None
        """The thread that runs; None while something happens by itself."""
        self.processes: list[Process] = []
        self._clocks: dict[str, Clock] = {}
        """Of each host."""
        self.failed: list[tuple[Thread, BaseException]] = []
        """Threads that an exception has ended."""
        self._hub = greenlet.getcurrent()
        self._ready: list[Thread] = []
        self._dying: list[Thread] = []
        self._due: list[tuple[float, int, Callable[[], object] | Thread]] = []
        """When, in which order, and what happens; a thread: its wait ends."""
        self._numbers = itertools.count(1)
        self._done_at_once = 0

    # What threads do

    def spawn(self, process: Process, name: str, run: Callable[[], object]) -> Thread:
        """Start a thread."""
        self.check()
        thread = Thread(process, name, next(self._numbers))
        thread.greenlet = greenlet.greenlet(lambda: self._run_thread(thread, run), parent=self._hub)
        process.threads.append(thread)
        self._ready.append(thread)
        return thread

    def check(self) -> None:
        """Raise ``Killed`` in a thread of a killed process. Whatever has an effect on others calls this first."""
        thread = self.current
        if thread is None:
            return
        self._done_at_once += 1
        if self._done_at_once > _MOST_AT_ONCE or thread.process.killed:
            self._refuse(thread)

    def _refuse(self, thread: Thread) -> None:
        if self._done_at_once > _MOST_AT_ONCE:
            self._done_at_once = 0
            raise Spins(f"at {self.now:.3f} s")
        thread.refused += 1
        if thread.refused > _UNENDING:
            raise RuntimeError(f"{thread} has been killed, and does not end")
        raise Killed

    def wait(self, waiters: list[Thread], timeout: float | None = None) -> bool:
        """Wait for ``wake`` or ``wake_all`` of ``waiters``; False if ``timeout`` seconds have passed before."""
        self.check()
        thread = self.running
        end = None if timeout is None else self.now + thread.process.clock.lasts(max(0.0, timeout))
        while True:
            waiters.append(thread)
            thread.waits_in, thread.woken = waiters, False
            if end is not None:
                thread.timer = next(self._numbers)
                heapq.heappush(self._due, (end, thread.timer, thread))
            self._hub.switch()
            if not thread.interrupts:
                return thread.woken
            if self._handle_in(thread, waiters) or (end is not None and self.now >= end):
                return thread.woken

    def wait_until(self, waiters: list[Thread], ready: Callable[[], Any], timeout: float | None) -> Any:
        """Wait until that is so, woken as one of ``waiters``; it is not if ``timeout`` seconds have passed before."""
        read = self.running.process.clock.read
        end = None if timeout is None else read() + timeout
        while not (found := ready()):
            left = None if end is None else end - read()
            if left is not None and left <= 0:
                break
            self.wait(waiters, left)
        return found

    def _handle_in(self, thread: Thread, waiters: list[Thread]) -> bool:
        """Call the signal handlers of a thread that waits; True if it has been woken, before or by one of them."""
        if not thread.woken:
            waiters.append(thread)
            thread.waits_in = waiters
        try:
            self._handle(thread)
        except BaseException:
            if thread.woken:  # somebody else may take what it was woken for
                self.wake(waiters)
            raise
        finally:
            if thread.waits_in is not None:
                waiters.remove(thread)
                thread.waits_in = None
            elif thread in self._ready:
                self._ready.remove(thread)
        return thread.woken

    def pause(self) -> None:
        """A point where another thread may go first."""
        thread = self.current
        if thread is None:
            raise RuntimeError(_ONLY_THREADS)
        self._done_at_once += 1
        if self._done_at_once > _MOST_AT_ONCE or thread.process.killed:
            self._refuse(thread)
        if self._ready and self._chance() < _PAUSES:
            self._ready.append(thread)
            self._hub.switch()
        if thread.interrupts:
            self._handle(thread)

    def sleep(self, seconds: float) -> None:
        """Wait for nothing but time."""
        self.wait([], seconds)

    def wake(self, waiters: list[Thread]) -> None:
        """Wake one of them, whichever."""
        if waiters:
            self._wake(waiters[int(self._chance() * len(waiters))], woken=True)

    def wake_all(self, waiters: list[Thread]) -> None:
        """Wake all of them."""
        if waiters:
            for thread in list(waiters):
                self._wake(thread, woken=True)

    @property
    def running(self) -> Thread:
        """The thread that runs. Raises ``RuntimeError`` outside of threads, where nothing may wait."""
        if self.current is None:
            raise RuntimeError(_ONLY_THREADS)
        return self.current

    # What happens to them

    def process(self, name: str, host: str = "") -> Process:
        """A new process, without threads yet. ``host``: the machine; one of its own if not given."""
        host = host or name
        clock = self._clocks.setdefault(host, Clock(self))
        self.processes.append(process := Process(name, host, clock))
        return process

    def drift(self, host: str, rate: float) -> None:
        """The clock of a host passes so many seconds in a second from now on. Waits that have begun end as they are."""
        clock = self._clocks[host]
        clock.ahead += self.now * (clock.rate - rate)
        clock.rate = rate

    def at(self, when: float, happens: Callable[[], object]) -> None:
        """Have something happen by itself at a moment. It may wake threads, and waits for nothing."""
        heapq.heappush(self._due, (when, next(self._numbers), happens))

    def freeze(self, process: Process) -> None:
        """Like SIGSTOP. A thread that runs goes on until it waits or pauses."""
        process.frozen = True

    def thaw(self, process: Process) -> None:
        """Like SIGCONT: time has passed for it meanwhile."""
        process.frozen = False
        self._ready += process.held
        process.held = []
        arrived, process.on_thaw = process.on_thaw, []
        for happens in arrived:
            happens()

    def interrupt(self, process: Process, handler: Callable[[], object]) -> None:
        """Have the main thread call a signal's handler as soon as it runs; it waits no longer meanwhile.

        Where it waits, it goes on with that, unless the handler raises.
        """
        main = process.threads[0]
        main.interrupts.append(handler)
        if main.waits_in is not None:
            self._wake(main, woken=False)

    def kill(self, process: Process) -> None:
        """Like SIGKILL. A thread that kills its own process ends here."""
        if not process.killed:
            process.killed = True
            self._dying += process.threads
            for happens in process.on_end:
                happens()
        self.check()

    def run(self, until: Callable[[], Any], limit: float) -> None:
        """Let things happen until that is so. Raises ``Stuck`` if it never will be, or not within ``limit`` seconds."""
        began = self.now
        end = began + limit
        for _ in range(_MOST_STEPS):
            if until():
                return
            if not self._step(end):
                break
        waiting = [each for process in self.processes for each in process.threads if not each.done]
        raise Stuck(f"after {self.now - began:.1f} s these still wait: {waiting}")

    def close(self) -> None:
        """End all processes."""
        self.current = None
        for process in self.processes:
            self.kill(process)
        self._bury()

    # How

    def _step(self, end: float) -> bool:
        """Run one thread, or let one thing happen; False if there is nothing more until ``end``."""
        if self._dying:
            self._bury()
            return True
        if self._ready and (thread := self._next()):
            self.current = thread
            thread.greenlet.switch()  # raises nothing: see _run_thread
            self.current = None
            return True
        due = self._due
        while due and due[0][0] <= end:
            when, number, happens = heapq.heappop(due)
            if isinstance(happens, Thread) and happens.timer != number:
                continue  # it was woken before
            if when > self.now:
                self.now, self._done_at_once = when, 0
            if isinstance(happens, Thread):
                self._wake(happens, woken=False)
            else:
                happens()
            return True
        return False

    def _next(self) -> Thread | None:
        ready = self._ready
        while ready:
            if len(ready) > 1:
                place = int(self._chance() * len(ready))
                ready[place], ready[-1] = ready[-1], ready[place]
            thread = ready.pop()
            if not thread.process.frozen:
                return thread
            thread.process.held.append(thread)
        return None

    def _handle(self, thread: Thread) -> None:
        while thread.interrupts:
            thread.interrupts.pop(0)()

    def _wake(self, thread: Thread, *, woken: bool) -> None:
        if thread.waits_in is not None:
            thread.waits_in.remove(thread)
            thread.waits_in, thread.woken, thread.timer = None, woken, 0
            self._ready.append(thread)

    def _bury(self) -> None:
        """End the threads of killed processes: they unwind, and every attempt to wait meanwhile raises ``Killed``."""
        while self._dying:
            thread = self._dying.pop(0)
            if thread.done:
                continue
            if thread.waits_in is not None:
                thread.waits_in.remove(thread)
                thread.waits_in = None
            for held in (self._ready, thread.process.held):
                if thread in held:
                    held.remove(thread)
            if thread.greenlet:  # it has begun
                self.current = thread
                thread.greenlet.throw(Killed)
                self.current = None
            thread.done, thread.greenlet = True, None

    def _run_thread(self, thread: Thread, run: Callable[[], object]) -> None:
        try:
            run()
        except Killed:
            pass
        except BaseException as error:
            self.failed.append((thread, error))
        thread.done, thread.greenlet = True, None
        self.wake_all(thread.joining)
