"""The keeper's side of the processes that hold nodes: forked from it, told what to do, and gone with it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rdzv_launcher.bench.method.turns import DidNotFinish
from rdzv_launcher.bench.processes.child import ended_by
from rdzv_launcher.bench.processes.forks import Fork

_READ = 1 << 20


class NodesProcess(Fork):
    """A process that holds some of the nodes."""

    def __init__(self, run: Callable[[socket.socket], None], others: Iterable[Fork], numbers: Sequence[int]) -> None:
        super().__init__(run, others)
        self.numbers = list(numbers)
        self.expected = len(numbers)
        """How many of its nodes are to join in this phase."""
        self._unread = b""

    def send(self, do: str, **what: Any) -> None:
        """Send a command, which is a method of ``NodeProcess``."""
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


class Children:
    """All live processes. Used only by the main thread; they end when it does."""

    def __init__(self) -> None:
        self.living: list[NodesProcess] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(sys.stdin.buffer, selectors.EVENT_READ)

    def fork(self, numbers: Sequence[int], run: Callable[[socket.socket], None]) -> None:
        """Fork one more, in which ``run`` gets the other end of its connection."""
        child = NodesProcess(run, self.living, numbers)
        self.living.append(child)
        self._selector.register(child.connection, selectors.EVENT_READ, child)

    def ask(
        self, children: Iterable[NodesProcess], key: str, limit_s: float, late: str
    ) -> dict[NodesProcess, dict[str, Any]]:
        """Wait for an answer with ``key`` from each. Raises ``DidNotFinish``, after ``limit_s`` with ``late``."""
        deadline = time.perf_counter() + limit_s
        wanted, found = set(children), dict[NodesProcess, dict[str, Any]]()
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
        """Let them live for a while. Raises ``DidNotFinish`` if one of them gives up."""
        deadline = time.perf_counter() + seconds
        while (rest := deadline - time.perf_counter()) > 0:
            for _, answer in self._heard(rest):
                if "gave_up" in answer:
                    raise DidNotFinish(f"a node gave up: {answer['gave_up']}")

    def lose(self, child: NodesProcess) -> None:
        """Send SIGKILL to one of them, which no longer is one of ``living``."""
        self._selector.unregister(child.connection)
        self.living.remove(child)
        child.kill()

    def _heard(self, limit_s: float) -> list[tuple[NodesProcess, dict[str, Any]]]:
        heard: list[tuple[NodesProcess, dict[str, Any]]] = []
        for key, _ in self._selector.select(limit_s):
            if key.data is None:  # standard input: nobody is left who could want the figures
                os._exit(1)
            answers = key.data.read()
            if answers is None:
                self._selector.unregister(key.fileobj)
                self.living.remove(key.data)
                raise DidNotFinish(f"a process with {len(key.data.numbers)} nodes {ended_by(key.data.reap())}")
            heard += [(key.data, answer) for answer in answers]
        return heard
