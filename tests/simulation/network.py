"""Hosts, and connections between their processes: ordered, sometimes slow, and broken in the ways that TCP breaks.

A kernel goes on while a process of its stands still: it takes connections and data for it. When a process ends, its
kernel says so: in an orderly way, or by a reset if the process had left something unread. A host that is gone, or cut
off, says nothing; what was sent to it arrives once it can be reached again.
"""

from __future__ import annotations

import errno
import itertools
import math
from collections import deque
from collections.abc import Callable, Sized
from typing import Literal

from simulation.scheduler import Process, Scheduler, Thread

How = Literal["closed", "reset", "silent"]
"""How the other side of a connection has ended; ``silent``: this side's kernel has given it up."""

_MEAN_S = 0.002
_SLOW_S = 0.3
_SLOW = 0.02
"""How often something takes up to ``_SLOW_S``."""
_RESENT_S = 924.6
"""So long Linux sends again what nobody confirms (tcp_retries2), unless TCP_USER_TIMEOUT says another time."""


class End:
    """One side of a connection, of one process.

    ``on_message`` and ``on_end`` are called when something has come: by no thread, so they may wake some and wait for
    nothing. Neither is called after ``close``, or while the process stands still, unless they stand for what its kernel
    does (``in_kernel``).
    """

    def __init__(self, network: Network, process: Process, port: int = 0, *, in_kernel: bool = False) -> None:
        self._network, self.process, self.port, self.in_kernel = network, process, port, in_kernel
        self.peer: End = self  # until it is connected
        self.on_message: Callable[[object], None] = _ignore
        self.on_end: Callable[[How], None] = _ignore
        self.ended = False
        """Nothing more comes, and nothing more can be sent."""
        self.unread: deque[Callable[[], None]] = deque()
        self.held: Sized = self.unread
        """What its process has left unread, if there is anything."""
        self.keep_alive: float | None = None
        """After so many seconds of silence its kernel gives the other side up; None: it does not ask."""
        self.resends = _RESENT_S
        """So long its kernel sends again what nobody confirms: meanwhile it does not ask."""
        self._under_way: deque[Callable[[], None]] = deque()
        self._last = 0.0

    def send(self, message: object) -> None:
        """Raises ``ConnectionError`` after the end."""
        self._network.scheduler.check()
        if self.ended:
            raise ConnectionResetError("the connection has ended")
        peer = self.peer
        self._network.on_send(self.process, peer.process, message)
        self._send(lambda: peer.on_message(message))

    def close(self) -> None:
        """End it: the other side is told. May be repeated."""
        self._network.scheduler.check()
        self.end("closed")

    def end(self, how: How) -> None:
        """End this side, as its kernel does when the process is gone."""
        if not self.ended:
            self.ended = True
            self._network.ends.remove(self)
            self._send(lambda: self.peer.hear_of_the_end(how))

    def hear_of_the_end(self, how: How) -> None:
        if not self.ended:
            self.ended = True
            self._network.ends.remove(self)
            self.on_end(how)

    def note_silence(self, since: float) -> None:
        """From now on nothing gets through, one way at least: this side's kernel will give up, if it asks or sends."""

        def give_up(limit: float) -> None:
            now = self._network.silent_since(self)
            if self.ended or self.process.killed or now is None:
                return
            if now != since:  # they have heard each other in between, or there was another cause
                self.note_silence(now)
            elif not self._under_way or limit == self.resends:
                self.take(lambda: self.hear_of_the_end("silent"))

        for limit in (self.keep_alive, self.resends if self._under_way or self.keep_alive else None):
            if limit is not None:
                self._network.scheduler.at(since + limit, lambda limit=limit: give_up(limit))

    def take(self, arrives: Callable[[], None]) -> None:
        """Something has come to its host."""
        if self.ended or self.process.killed:
            return
        if self.process.frozen and not self.in_kernel:
            self.unread.append(arrives)
            self.process.on_thaw.append(self.read)
        else:
            arrives()

    def _send(self, arrives: Callable[[], None]) -> None:
        network = self._network
        self._under_way.append(arrives)
        due = network.scheduler.now + network.latency()
        if due > self._last:
            self._last = due
        network.scheduler.at(self._last, self._arrive)

    def _arrive(self) -> None:
        """The next message comes to the other host, if that can be reached."""
        peer = self.peer
        if self._network.is_cut(self.process.host, peer.process.host):
            self._network.when_healed.append(self._arrive)
            return
        peer.take(self._under_way.popleft())

    def read(self) -> None:
        """The process has been continued: it takes what its kernel has held for it."""
        while self.unread and not self.process.killed:
            if self.process.frozen:
                self.process.on_thaw.append(self.read)
                return
            self.unread.popleft()()


class Network:
    """All hosts. ``latency`` and every choice come from the scheduler's seed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self._chance = scheduler, scheduler.random.random
        self.ends: list[End] = []
        """The sides of all connections that have not ended."""
        self.when_healed: list[Callable[[], None]] = []
        self.on_send: Callable[[Process, Process, object], object] = _ignore
        """Somebody of the world wants to know."""
        self._listening: dict[tuple[str, int], tuple[Process, Callable[[End], None], bool]] = {}
        self._ports = itertools.count(40_000)
        self._cut: dict[tuple[str, str], float] = {}
        self._gone: dict[str, float] = {}

    def latency(self) -> float:
        """How long something takes from one host to another, in seconds."""
        chance = self._chance
        if chance() < _SLOW:
            return chance() * _SLOW_S
        return -math.log(1.0 - chance()) * _MEAN_S

    def free_port(self) -> int:
        """A port that nobody has had yet."""
        return next(self._ports)

    def listen(self, process: Process, port: int, accept: Callable[[End], None], *, in_kernel: bool = False) -> None:
        """Take connections at a port of the process's host. Raises ``OSError`` if another living process has it."""
        self.scheduler.check()
        held = self._listening.get((process.host, port))
        if held is not None and not held[0].killed:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._listening[process.host, port] = process, accept, in_kernel

    def stop_listening(self, process: Process, port: int) -> None:
        self.scheduler.check()
        if self._listening.get((process.host, port), (None,))[0] is process:
            del self._listening[process.host, port]

    def connect(self, host: str, port: int, timeout: float) -> End:
        """A connection of the running thread's process.

        Raises ``ConnectionRefusedError`` if nobody listens there, ``TimeoutError`` if nothing is heard.
        """
        waiting, answers = list[Thread](), list[bool]()

        def answered(is_open: bool) -> None:
            answers.append(is_open)
            self.scheduler.wake_all(waiting)

        mine = End(self, self.scheduler.running.process, self.free_port())
        self.dial(mine, host, port, answered)
        self.scheduler.wait(waiting, timeout)
        if not answers:
            self.give_up(mine)
            raise TimeoutError("no answer")
        if not answers[0]:
            raise ConnectionRefusedError("connection refused")
        return mine

    def dial(self, mine: End, host: str, port: int, answered: Callable[[bool], None]) -> None:
        """Try to connect ``mine``. ``answered`` is called with whether that worked; not at all if nothing is heard."""
        scheduler, here = self.scheduler, mine.process.host

        def arrives() -> None:
            if self.is_cut(here, host):
                return
            process, accept, in_kernel = self._listening.get((host, port), (None, _ignore, False))
            is_open = process is not None and not process.killed
            if process is not None and is_open:
                theirs = End(self, process, port, in_kernel=in_kernel)
                mine.peer, theirs.peer = theirs, mine
                self.ends += [mine, theirs]
                if process.frozen and not in_kernel:  # its kernel takes it all the same
                    process.on_thaw.append(lambda: None if theirs.ended else accept(theirs))
                else:
                    accept(theirs)
            scheduler.at(scheduler.now + self.latency(), lambda: self.is_cut(host, here) or answered(is_open))

        scheduler.at(scheduler.now + self.latency(), arrives)

    def give_up(self, mine: End) -> None:
        """Stop trying to connect."""
        if mine in self.ends:
            mine.end("reset")
        mine.ended = True

    # What goes wrong

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing gets from one host to another now."""
        if source == target or not (self._cut or self._gone):
            return False
        return (source, target) in self._cut or source in self._gone or target in self._gone

    def silent_since(self, end: End) -> float | None:
        """When the hosts of a connection have ceased to hear each other, one way at least; None: they do."""
        here, there = end.process.host, end.peer.process.host
        if here == there:
            return self._gone.get(here)
        times = [
            self._gone.get(here),
            self._gone.get(there),
            self._cut.get((here, there)),
            self._cut.get((there, here)),
        ]
        return min((each for each in times if each is not None), default=None)

    def cut(self, source: str, target: str) -> None:
        """From now on nothing gets from one host to the other: in this direction."""
        self._cut.setdefault((source, target), self.scheduler.now)
        self._note_silence()

    def heal(self, source: str, target: str) -> None:
        """Undo ``cut``: what was sent meanwhile arrives."""
        self._cut.pop((source, target), None)
        waiting, self.when_healed = self.when_healed, []
        for arrives in waiting:
            self.scheduler.at(self.scheduler.now + self.latency(), arrives)

    def kill(self, process: Process) -> None:
        """The process ends, and its kernel tells the other sides of its connections."""
        for end in [each for each in self.ends if each.process is process]:
            end.end("reset" if end.held else "closed")
        self.scheduler.kill(process)

    def crash(self, host: str) -> None:
        """The host is gone with all its processes, and says nothing."""
        self._gone.setdefault(host, self.scheduler.now)
        self._note_silence()
        for process in self.scheduler.processes:
            if process.host == host:
                self.scheduler.kill(process)

    def _note_silence(self) -> None:
        now = self.scheduler.now
        for end in self.ends:
            if self.silent_since(end) == now:
                end.note_silence(now)


def _ignore(*_: object) -> None:
    """Nobody waits for it."""
