"""How each fault is done and undone: a generator that yields what it waits for, a condition at a time."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rdzv_plugins.testing.processes import send
from soak.job import Node
from soak.schedule import Fault

if TYPE_CHECKING:
    from soak.soak import Soak

Condition = Callable[[], bool]
Steps = Iterator[Condition]

_WORKER_S = 5.0
"""A worker to be killed or stopped is waited for so long: the node may be between two rounds."""


class Injector:
    """Does the faults of a schedule to a soak's job. All of one thread."""

    def __init__(self, soak: Soak) -> None:
        self._soak, self._lan = soak, soak.lan

    def do(self, fault: Fault) -> Steps:
        """All of it; over when the fault is."""
        if fault.kind in ("kill_member", "kill_server", "stop_member", "stop_server"):
            return self._of_service(fault)
        return getattr(self, f"_{fault.kind}")(fault, self._soak.job.nodes[fault.target])

    def _over(self, fault: Fault) -> Steps:
        if fault.waits:
            yield self._others_went_on(fault)
        yield _after(fault.lasts)

    def _others_went_on(self, fault: Fault) -> Condition:
        since = time.monotonic()
        return lambda: self._soak.others_went_on(fault, since)

    def _kill_agent(self, fault: Fault, node: Node, number: signal.Signals = signal.SIGKILL) -> Steps:
        yield from self._end(node, number)
        yield from self._over(fault)
        self._soak.start(node)
        if fault.again and (agent := node.agent) is not None:
            yield lambda: agent.spoke() or agent.ended is not None
            yield _after(fault.again)
            yield from self._end(node, number)
            self._soak.start(node)

    def _term_agent(self, fault: Fault, node: Node) -> Steps:
        return self._kill_agent(fault, node, signal.SIGTERM)

    def _end(self, node: Node, number: signal.Signals) -> Steps:
        """Its agent; until it has ended it takes no part."""
        with _impaired(node):
            if node.agent is not None:
                node.agent.send(number)
            yield lambda: self._soak.has_ended(node)

    def _leave(self, fault: Fault, node: Node) -> Steps:
        return self._end(node, signal.SIGTERM)

    def _arrive(self, fault: Fault, node: Node) -> Steps:
        self._soak.start(node)
        yield _after(0)

    def _stop_agent(self, fault: Fault, node: Node) -> Steps:
        if (agent := node.agent) is not None:
            with _impaired(node), _then(agent.send, signal.SIGCONT):
                agent.send(signal.SIGSTOP)
                yield from self._over(fault)

    def _cut(self, fault: Fault, node: Node) -> Steps:
        with _impaired(node):
            self._soak.cut_off(node)
            self._lan.cut(node.host)
            with _then(self._soak.healed, node), _then(self._lan.mend, node.host):
                yield from self._over(fault)

    def _slow(self, fault: Fault, node: Node) -> Steps:
        self._lan.slow(node.host, fault.delay)
        with _then(self._lan.hasten, node.host):
            yield _after(fault.lasts)

    def _blind(self, fault: Fault, node: Node) -> Steps:
        other = self._soak.job.nodes[fault.other].host
        yield from self._end(node, signal.SIGKILL)
        yield self._others_went_on(fault)
        node.uncertain = True
        self._lan.hide(other, node.host)
        with _then(setattr, node, "uncertain", False), _then(self._lan.show, other, node.host):
            self._soak.start(node)
            yield _after(fault.lasts)
            yield self._others_went_on(fault)

    def _kill_worker(self, fault: Fault, node: Node) -> Steps:
        found: list[int] = []
        yield from self._find_worker(fault, node, found)
        for pid in found[:1]:
            send(pid, signal.SIGKILL)

    def _stop_worker(self, fault: Fault, node: Node) -> Steps:
        found: list[int] = []
        yield from self._find_worker(fault, node, found)
        for pid in found[:1]:
            send(pid, signal.SIGSTOP)
            with _then(send, pid, signal.SIGCONT):
                yield _after(fault.lasts)

    def _find_worker(self, fault: Fault, node: Node, found: list[int]) -> Steps:
        late = _after(_WORKER_S)

        def look() -> bool:
            found[:] = self._soak.job.workers(node)
            return bool(found) or late()

        yield look
        self._soak.note(f"{fault.kind} {fault.target}: pid {found[0]}" if found else f"{fault}: it had no worker")

    def _of_service(self, fault: Fault) -> Steps:
        service = self._soak.service
        do, undo = (service.kill, service.start) if fault.kind.startswith("kill") else (service.stop, service.cont)
        do(fault.target)
        with _then(undo, fault.target):
            yield _after(fault.lasts)


def _after(seconds: float) -> Condition:
    """True once that time has passed."""
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() >= deadline


@contextmanager
def _impaired(node: Node) -> Iterator[None]:
    """Until the end it takes no part."""
    node.impaired += 1
    try:
        yield
    finally:
        node.impaired -= 1


@contextmanager
def _then(undo: Callable[..., object], *args: object) -> Iterator[None]:
    """Also if the fault is given up in between."""
    try:
        yield
    finally:
        undo(*args)
