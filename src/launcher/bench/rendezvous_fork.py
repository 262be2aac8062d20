"""The keeper's side of the processes that hold nodes: forked from it, told what to do, and gone with it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from launcher.bench.ends import with_parent
from launcher.bench.turns import DidNotFinish

_READ = 1 << 20


class Child:
    """One of them."""

    def __init__(self, pid: int, connection: socket.socket, numbers: Sequence[int]) -> None:
        self.pid, self.connection, self.numbers = pid, connection, list(numbers)
        self.expected = len(numbers)
        """How many of its nodes are to join in this phase."""
        self._unread = b""

    def send(self, do: str, **what: Any) -> None:
        """A command, which ``NodeProcess`` has as a method."""
        with contextlib.suppress(OSError):  # its end is noticed where its answer is waited for
            self.connection.sendall(json.dumps({"do": do, **what}).encode() + b"\n")

    def read(self) -> list[dict[str, Any]] | None:
        """What it has said; None: it has ended."""
        try:
            data = self.connection.recv(_READ)
        except OSError:
            data = b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def kill(self) -> None:
        """SIGKILL; returns at once."""
        os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Wait for its end; returns its exit code, negative for a signal."""
        self.connection.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Children:
    """All that live. Used by the main thread alone, whose end is theirs."""

    def __init__(self) -> None:
        self.living: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(sys.stdin.buffer, selectors.EVENT_READ)

    def fork(self, numbers: Sequence[int], run: Callable[[socket.socket], None]) -> None:
        """One more, in which ``run`` gets the other end of its connection."""
        ours, theirs = socket.socketpair()
        ends_with_me = with_parent()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ends_with_me()
                for each in self.living:
                    each.connection.close()
                ours.close()
                run(theirs)
                code = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        theirs.close()
        child = Child(pid, ours, numbers)
        self.living.append(child)
        self._selector.register(ours, selectors.EVENT_READ, child)

    def ask(self, children: Iterable[Child], key: str, limit_s: float, late: str) -> dict[Child, dict[str, Any]]:
        """Wait for an answer that has ``key`` of each. Raises ``DidNotFinish``, after ``limit_s`` with ``late``."""
        deadline = time.perf_counter() + limit_s
        wanted, found = set(children), dict[Child, dict[str, Any]]()
        while wanted - found.keys():
            rest = deadline - time.perf_counter()
            if rest <= 0:
                raise DidNotFinish(f"{late} after {limit_s:g} s")
            for child, answer in self._heard(rest):
                if "gave_up" in answer:
                    raise DidNotFinish(f"a node gave up: {answer['gave_up']}")
                if key in answer:
                    found[child] = answer
        return found

    def pause(self, seconds: float) -> None:
        """Let them live. Raises ``DidNotFinish`` if one of them gives up."""
        deadline = time.perf_counter() + seconds
        while (rest := deadline - time.perf_counter()) > 0:
            for _, answer in self._heard(rest):
                if "gave_up" in answer:
                    raise DidNotFinish(f"a node gave up: {answer['gave_up']}")

    def lose(self, child: Child) -> None:
        """SIGKILL to one of them, which is none of ``living`` any more."""
        self._selector.unregister(child.connection)
        self.living.remove(child)
        child.kill()

    def _heard(self, limit_s: float) -> list[tuple[Child, dict[str, Any]]]:
        heard: list[tuple[Child, dict[str, Any]]] = []
        for key, _ in self._selector.select(limit_s):
            if key.data is None:  # standard input: nobody is there who could want the figures
                os._exit(1)
            answers = key.data.read()
            if answers is None:
                self._selector.unregister(key.fileobj)
                self.living.remove(key.data)
                raise DidNotFinish(f"a process with {len(key.data.numbers)} nodes {ended_by(key.data.reap())}")
            heard += [(key.data, answer) for answer in answers]
        return heard


def ended_by(code: int) -> str:
    """In words, of an exit code or, where it is negative, a signal."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
