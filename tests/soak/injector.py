"""How each fault is done and undone: a generator that yields what it waits for, a condition at a time."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from kits.hosts.hosts import Lan

from rdzv_plugins.testing.agents.processes import send
from soak.job import Job, Node
from soak.schedule import Fault
from soak.service import Service

Condition = Callable[[], bool]

_WORKER_S = 5.0
"""A worker to be killed or stopped is waited for so long: the node may be between two rounds."""


class Stage(Protocol):
    """What the injector needs of the soak around it. All of one thread."""

    lan: Lan
    job: Job
    service: Service

    def start(self, node: Node) -> None:
        """Its agent, unless the job has been given up meanwhile."""

    def others_went_on(self, fault: Fault, since: float) -> bool:
        """The nodes that can take part are back at work without this one, or have had their time."""

    def has_ended(self, node: Node) -> bool:
        """An agent that was told to; or it has had its time."""

    def cut_off(self, node: Node) -> None:
        """The node is about to be cut off."""

    def healed(self, node: Node) -> None:
        """It is not any more."""

    def note(self, text: str) -> None:
        """Something that was done, or could not be."""


class Injector:
    """Does the faults of a schedule on a stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def do(self, fault: Fault) -> Iterator[Condition]:
        """All of it; over when the fault is."""
        done: Iterator[Condition] = getattr(self, f"_{fault.kind}")(fault)
        return done

    def _node(self, fault: Fault) -> Node:
        return self._stage.job.nodes[fault.target]

    def _over(self, fault: Fault) -> Iterator[Condition]:
        if fault.waits:
            yield self._others_went_on(fault)
        yield _after(fault.lasts)

    def _others_went_on(self, fault: Fault) -> Condition:
        since = time.monotonic()
        return lambda: self._stage.others_went_on(fault, since)

    def _kill_agent(self, fault: Fault) -> Iterator[Condition]:
        yield from self._end(self._node(fault), signal.SIGKILL)
        yield from self._over(fault)
        yield from self._return(fault, signal.SIGKILL)

    def _term_agent(self, fault: Fault) -> Iterator[Condition]:
        yield from self._end(self._node(fault), signal.SIGTERM)
        yield from self._over(fault)
        yield from self._return(fault, signal.SIGTERM)

    def _return(self, fault: Fault, number: signal.Signals) -> Iterator[Condition]:
        node = self._node(fault)
        self._stage.start(node)
        if fault.again and node.agent is not None:
            agent = node.agent
            yield lambda: agent.spoke() or agent.ended is not None
            yield _after(fault.again)
            yield from self._end(node, number)
            self._stage.start(node)

    def _end(self, node: Node, number: signal.Signals) -> Iterator[Condition]:
        """Its agent; until it has ended it takes no part."""
        node.impaired += 1
        try:
            if node.agent is not None:
                node.agent.send(number)
            yield lambda: self._stage.has_ended(node)
        finally:
            node.impaired -= 1

    def _leave(self, fault: Fault) -> Iterator[Condition]:
        yield from self._end(self._node(fault), signal.SIGTERM)

    def _arrive(self, fault: Fault) -> Iterator[Condition]:
        self._stage.start(self._node(fault))
        yield _after(0)

    def _stop_agent(self, fault: Fault) -> Iterator[Condition]:
        node = self._node(fault)
        agent = node.agent
        if agent is None:
            return
        node.impaired += 1
        agent.send(signal.SIGSTOP)
        try:
            yield from self._over(fault)
        finally:
            agent.send(signal.SIGCONT)
            node.impaired -= 1

    def _cut(self, fault: Fault) -> Iterator[Condition]:
        node = self._node(fault)
        node.impaired += 1
        self._stage.cut_off(node)
        self._stage.lan.cut(node.host)
        try:
            yield from self._over(fault)
        finally:
            self._stage.lan.mend(node.host)
            self._stage.healed(node)
            node.impaired -= 1

    def _slow(self, fault: Fault) -> Iterator[Condition]:
        host = self._node(fault).host
        self._stage.lan.slow(host, fault.delay)
        try:
            yield _after(fault.lasts)
        finally:
            self._stage.lan.hasten(host)

    def _blind(self, fault: Fault) -> Iterator[Condition]:
        node, host, other = self._node(fault), self._node(fault).host, self._stage.job.nodes[fault.other].host
        yield from self._end(node, signal.SIGKILL)
        yield self._others_went_on(fault)
        node.uncertain = True
        self._stage.lan.hide(other, host)
        try:
            self._stage.start(node)
            yield _after(fault.lasts)
            yield self._others_went_on(fault)
        finally:
            self._stage.lan.show(other, host)
            node.uncertain = False

    def _kill_worker(self, fault: Fault) -> Iterator[Condition]:
        found: list[int] = []
        yield from self._find_worker(fault, found)
        for pid in found[:1]:
            send(pid, signal.SIGKILL)

    def _stop_worker(self, fault: Fault) -> Iterator[Condition]:
        found: list[int] = []
        yield from self._find_worker(fault, found)
        for pid in found[:1]:
            send(pid, signal.SIGSTOP)
        try:
            yield _after(fault.lasts)
        finally:
            for pid in found[:1]:
                send(pid, signal.SIGCONT)

    def _find_worker(self, fault: Fault, found: list[int]) -> Iterator[Condition]:
        node, late = self._node(fault), _after(_WORKER_S)

        def look() -> bool:
            found[:] = self._stage.job.workers(node)
            return bool(found) or late()

        yield look
        self._stage.note(f"{fault.kind} {fault.target}: pid {found[0]}" if found else f"{fault}: it had no worker")

    def _kill_server(self, fault: Fault) -> Iterator[Condition]:
        self._stage.service.kill(fault.target)
        try:
            yield _after(fault.lasts)
        finally:
            self._stage.service.start(fault.target)

    def _stop_server(self, fault: Fault) -> Iterator[Condition]:
        self._stage.service.stop(fault.target)
        try:
            yield _after(fault.lasts)
        finally:
            self._stage.service.cont(fault.target)

    _kill_member = _kill_server
    _stop_member = _stop_server


def _after(seconds: float) -> Condition:
    """True once that time has passed."""
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() >= deadline
