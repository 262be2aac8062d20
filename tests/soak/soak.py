"""One soak: a job, faults from a schedule, and the watch over both. One thread; everything goes through ``tick``."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kits.etcd.etcd_processes import Member
from kits.hosts.hosts import Lan

from rdzv_plugins.testing.processes import send
from soak.checker import Checker
from soak.diary import Diary
from soak.job import AgentProcess, Job, Node, Server
from soak.leaks import LEFT_BEHIND_S, Growth, Leftovers
from soak.schedule import Fault

_TICK_S = 0.05
_TO_END_S = 60.0
"""An agent that got SIGTERM: torch gives its workers 30 s, farewells take a few."""
_LOAD = 3.0
"""Limits grow with the load of the machine, so many times at most: another one would hide what is to be found."""
_WORKER_S = 5.0
"""A worker to be killed or stopped is waited for so long: the node may be between two rounds."""
_FIRST_WORD_S = 300.0
"""An agent has said something: what it takes to start, on a machine with much else to do, is not the point."""
_END_S = 40.0
"""Within this time all agents have ended once their workers are done."""

_ROUND_S = 16.0
"""Workers that have failed end once they have saved, 6 s; nodes join, dial the store, exchange ranks, workers start."""
_REACH_S = 15.0
"""A node was lost while others were to reach its store."""
_AGAIN_S = 30.0
"""A node that could not reach the store, or was lost again and again, is let in after pauses that grow."""


class Over(Exception):
    """The job has ended, or does not come back: so does the soak, and what is under way is to be undone."""


class Soak:
    """Does faults, one after the other, and watches what they do to the job. ``directory`` keeps all that was seen.

    ``parts`` are those of the service that are apart from the nodes, by name. Limits are ``slack`` times as long as on
    a machine that has nothing else to do.
    """

    def __init__(
        self,
        directory: Path,
        lan: Lan,
        job: Job,
        parts: Mapping[str, Server | Member],
        *,
        ttl: float,
        slack: float,
        min_nodes: int,
    ) -> None:
        self._lan, self._job, self._parts = lan, job, parts
        self._directory, self._ttl, self._slack, self._min_nodes = directory, ttl, slack, min_nodes
        self.diary = Diary(directory)
        self.interrupted = False
        self._leftovers, self._growth = Leftovers(self.diary), Growth(self.diary)
        self._checker = Checker(heard_s=ttl * slack)
        self._seen = 0  # of the checker's violations
        self._since = 0.0  # nothing was done to the job after that
        self._away: set[str] = set()  # parts of the service to which something is done
        self._told = False  # the workers were told to end

    def close(self) -> None:
        """Nothing of the job is left."""
        self._job.kill_all()
        self.diary.close()

    # the job

    def run(self, faults: Iterable[Fault], until: float) -> None:
        """Until the clock says ``until``; then the job is let end."""
        try:
            for node in self._job.nodes.values():
                self._start(node)
            self._wait_back()
            for fault in faults:
                if time.monotonic() >= until or self.interrupted:
                    break
                self._do(fault)
            if self.diary.fault and self.diary.fault.hurries:
                self._wait_back()
            if not self.interrupted:
                self._let_end()
        except Over:
            self.diary.note("the job is over")
        self._job.kill_all()
        self._feed()
        self.diary.counts["rounds"] = self._checker.worked
        self.diary.counts["steps"] = self._checker.steps
        self.diary.counts["ended by nodes cut off"] = len(self._checker.excused)

    def _start(self, node: Node) -> None:
        agent = self._job.start(node)
        self._since = time.monotonic()
        self.diary.event("agent", node=node.name, pid=agent.pid, log=agent.output.name)

    def _do(self, fault: Fault) -> None:
        self._wait(lambda: False, fault.pause)
        self.diary.fault = fault
        self.diary.note(f"fault {sum(self.diary.faults.values()) + 1}: {fault}")
        self.diary.faults[fault.kind] += 1
        self.diary.event("fault", **{key: value for key, value in asdict(fault).items() if value})
        begun = self._since = time.monotonic()
        with getattr(self, "_service" if fault.kind.endswith("_service") else f"_{fault.kind}")(fault.target):
            if fault.waits:
                self._wait(lambda: self._others_went_on(fault, begun), math.inf)
            self._wait(lambda: False, fault.lasts)
        self._since = time.monotonic()
        self.diary.event("over", kind=fault.kind, target=fault.target)
        if not fault.hurries:
            self._wait_back()

    def _wait_back(self) -> None:
        """Until all nodes work together; says so if that takes too long."""
        name = self.diary.fault.name if self.diary.fault else "start"
        while not self._is_back(self._since):
            self._tick()
            if self.interrupted:
                return
            if self._too_long():
                text = f"the job is not back {time.monotonic() - self._since:.0f} s after {name}"
                self.diary.accuse("not_back", text, allowed=self._limit(), **self._state())
                raise Over
        took = time.monotonic() - self._since
        self.diary.recovered(name, took)
        round_ = self._checker.newest
        assert round_
        for agent in self._agents():
            for pid in agent.processes().keys() - {record["pid"] for record in round_.members.values()}:
                self._growth.look(agent.node, pid)
        if isinstance(server := self._parts.get("server"), Server):
            self._growth.look("rdzv serve", server.pid)
        self.diary.note(f"back after {took:.1f} s in round {round_.number} with {round_.size} worker(s)")

    def _too_long(self) -> bool:
        """Since the last thing that was done to the job, or the first word of the last agent that was started."""
        now = time.monotonic()
        silent = [agent.started for agent in self._agents() if not agent.heard]
        return now > min(silent) + _FIRST_WORD_S if silent else now > self._since + self._limit()

    def _let_end(self) -> None:
        """The workers are told to end: so does the job, everywhere, with exit code 0."""
        self._told = True
        agents = self._agents()
        (self._directory / "stop").touch()
        limit = self._allowed(_END_S)
        if not self._wait(lambda: not self._agents(), limit):
            still = [agent.node for agent in self._agents()]
            text = f"the workers were done {limit:.0f} s ago; still there: {still}"
            self.diary.accuse("not_ended", text, **self._state())
            return
        self._wait(lambda: not self._leftovers.due, 5 * LEFT_BEHIND_S)
        for agent in agents:
            if left := self._job.left_files(agent.node):
                text = f"{agent.node}: {len(left)} files are left for ever: {left[:5]}"
                self.diary.accuse("left_files", text, node=agent.node)

    # faults: each is done, and undone at the end of its context, also if it is given up

    @contextmanager
    def _kill_agent(self, target: str, number: signal.Signals = signal.SIGKILL) -> Iterator[None]:
        node = self._job.nodes[target]
        if node.agent is not None:
            node.agent.send(number)
        self._wait(lambda: self._has_ended(node), math.inf)
        yield
        if not node.up:  # nor was this interrupted
            self._start(node)

    def _term_agent(self, target: str) -> AbstractContextManager[None]:
        return self._kill_agent(target, signal.SIGTERM)

    @contextmanager
    def _stop_agent(self, target: str) -> Iterator[None]:
        node = self._job.nodes[target]
        with self._impaired(node), ExitStack() as undo:
            if node.agent:
                undo.callback(node.agent.send, signal.SIGCONT)
                node.agent.send(signal.SIGSTOP)
            yield

    @contextmanager
    def _cut(self, target: str) -> Iterator[None]:
        node = self._job.nodes[target]
        with self._impaired(node):
            self._checker.cut(target, time.monotonic())
            self._lan.cut(node.host)
            try:
                yield
            finally:
                self._lan.mend(node.host)
                self._checker.healed(target, time.monotonic())

    @contextmanager
    def _kill_worker(self, target: str) -> Iterator[None]:
        for pid in self._one_worker(target):
            send(pid, signal.SIGKILL)
        yield

    @contextmanager
    def _stop_worker(self, target: str) -> Iterator[None]:
        with ExitStack() as undo:
            for pid in self._one_worker(target):
                undo.callback(send, pid, signal.SIGCONT)
                send(pid, signal.SIGSTOP)
            yield

    def _one_worker(self, target: str) -> list[int]:
        """Its pid; none if it does not come: the node may be between two rounds."""
        node, found = self._job.nodes[target], list[int]()
        self._wait(lambda: found.extend(node.agent.workers()[:1] if node.agent else []) or bool(found), _WORKER_S)
        self.diary.note(f"pid {found or 'none'}")
        return found

    @contextmanager
    def _service(self, target: str) -> Iterator[None]:
        part = self._parts[target]
        kills = self.diary.fault is not None and self.diary.fault.kind.startswith("kill")
        self._away.add(target)
        (part.kill if kills else part.stop)()
        try:
            yield
        finally:
            (part.restart if kills else part.cont)()
            self._away.discard(target)

    @staticmethod
    @contextmanager
    def _impaired(node: Node) -> Iterator[None]:
        """Until the end it takes no part."""
        node.impaired = True
        try:
            yield
        finally:
            node.impaired = False

    def _others_went_on(self, fault: Fault, since: float) -> bool:
        """Or they are late, or too few."""
        took = time.monotonic() - since
        if self._is_back(since):
            self.diary.recovered(f"{fault.kind}_others", took)
            self.diary.note(f"the others went on after {took:.1f} s")
            return True
        limit = self._limit()
        if took > limit:
            text = f"the others have not gone on {limit:.1f} s after {fault.kind} {fault.target}"
            self.diary.accuse("not_back", text, kind_of_fault=f"{fault.kind}_others", **self._state())
        return took > limit or len(self._agents()) < self._min_nodes

    def _has_ended(self, node: Node) -> bool:
        agent = node.agent
        if agent is None or agent.code is not None:
            return True
        if time.monotonic() > self._since + self._allowed(_TO_END_S) and signal.SIGKILL not in agent.sent:
            self.diary.accuse("not_ended", f"the agent of {node.name} got SIGTERM and does not end", **self._state())
            agent.send(signal.SIGKILL)
        return False

    # watching

    def _tick(self) -> None:
        """Look at everything once."""
        time.sleep(_TICK_S)
        self._feed()
        if died := [name for name, part in self._parts.items() if not part.alive and name not in self._away]:
            self.diary.accuse("service", f"{died[0]} has ended")
            raise Over
        for agent in [node.agent for node in self._job.nodes.values() if node.agent]:
            spoke, ended = agent.heard, agent.look()
            if agent.heard and not spoke:
                self._since = time.monotonic()
            if ended:
                self._judge(agent)
                self._leftovers.ended(agent)
        self._leftovers.look()

    def _judge(self, agent: AgentProcess) -> None:
        """It has ended: as it was told to, or as it must not."""
        code = agent.code
        self.diary.event("agent_ended", node=agent.node, pid=agent.pid, code=code)
        allowed = [-signal.SIGKILL] if signal.SIGKILL in agent.sent else []
        if signal.SIGTERM in agent.sent:  # handled once it has said its first word
            allowed += [128 + signal.SIGTERM] if agent.heard else [128 + signal.SIGTERM, -signal.SIGTERM]
        if self._told and not allowed:
            allowed = [0]
        if code in allowed:
            return
        text = f"the agent of {agent.node} ended with {code}, not {allowed or 'at all'}"
        sent = [each.name for each in agent.sent]
        self.diary.accuse("agent_ended", text, node=agent.node, sent=sent, log=agent.said(), **self._state())
        if not agent.sent and not self._told:
            raise Over

    def _feed(self) -> None:
        for record in self._job.new_records():
            self._checker.feed(record)
        self._checker.settle()
        new = self._checker.violations[self._seen :]
        self._seen += len(new)
        for violation in new:
            self.diary.add(violation)

    def _wait(self, condition: Callable[[], bool], limit: float) -> bool:
        deadline = time.monotonic() + limit
        while not condition():
            if time.monotonic() >= deadline or self.interrupted:
                return False
            self._tick()
        return True

    def _agents(self) -> list[AgentProcess]:
        """Those that live."""
        return [node.agent for node in self._job.nodes.values() if node.up and node.agent]

    def _is_back(self, since: float) -> bool:
        """All that can take part work in one round, which has done steps of which each began after ``since``."""
        round_ = self._checker.newest
        can = {node.agent.token for node in self._job.nodes.values() if node.up and not node.impaired and node.agent}
        does = {record["agent"] for record in round_.members.values()} if round_ else set()
        return round_ is not None and does == can and round_.worked_since(since)

    def _limit(self) -> float:
        """Within which the job is back once nothing is wrong any more, and all agents have said their first word.

        A node is not known to be lost before ttl has passed; who fails with it asks for as long, and a second.
        """
        return self._allowed(2 * _ROUND_S + 2 * self._ttl + 1 + max(_REACH_S, self._ttl + 1) + _AGAIN_S)

    def _allowed(self, seconds: float) -> float:
        """How long it takes, since others use the processors as well."""
        return seconds * self._slack * min(_LOAD, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))

    def _state(self) -> dict[str, Any]:
        """Who is there, and what each agent has said last."""
        nodes = {
            node.name: {"up": node.up, "impaired": node.impaired, "log": node.agent.said() if node.agent else []}
            for node in self._job.nodes.values()
        }
        return {"nodes": nodes, "round": asdict(round_) if (round_ := self._checker.newest) else None}
