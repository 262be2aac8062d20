"""One soak: a job, faults from a schedule, and the watch over both. One thread; everything goes through ``tick``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
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
from soak.schedule import Burst, Fault

Condition = Callable[[], bool]
Steps = Generator[Condition, None, Any]

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
_STOPPED_WORKER_S = 30.0
"""A worker has so long to end by SIGTERM, which a stopped one does not."""


class Over(Exception):
    """The job has ended, or does not come back: so does the soak, and what is under way is to be undone."""


class Soak:
    """Does bursts of faults, and watches what they do to the job. ``directory`` keeps all that was seen.

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

    def run(self, bursts: Iterable[Burst], until: float) -> None:
        """Until the clock says ``until``; then the job is let end."""
        try:
            for node in self._job.nodes.values():
                self._start(node)
            self._wait_back("start", lambda: self._allowed(2 * _ROUND_S + self._ttl))
            for burst in bursts:
                if time.monotonic() >= until or self.interrupted:
                    break
                self._do(burst)
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

    def _do(self, burst: Burst) -> None:
        self.diary.burst = burst
        self._wait(lambda: False, burst.pause)
        self.diary.note(f"burst {burst.number}: {burst}")
        self.diary.counts["bursts"] += 1
        begun = self._since = time.monotonic()
        running = [self._timed(fault, begun) for fault in burst.faults]
        try:
            self._drive(running)
            self._since = max(self._since, time.monotonic())
            self._wait_back(burst.kind, self._limit)
        finally:
            for each in running:
                each.close()
            self.diary.burst = None

    def _drive(self, running: list[Steps]) -> None:
        """All of them to their ends, side by side."""
        waiting: list[tuple[Steps, Condition]] = [(each, lambda: True) for each in running]
        while waiting:
            later = []
            for each, condition in waiting:
                after: Condition | None = condition
                while after is not None and (after() or self.interrupted):
                    after = next(each, None)
                if after is not None:
                    later.append((each, after))
            waiting = later
            self._tick()

    def _wait_back(self, kind: str, limit: Callable[[], float]) -> None:
        """Until all nodes work together; says so if that takes too long."""
        while not self._is_back(self._since):
            self._tick()
            if self.interrupted:
                return
            if self._too_long(limit()):
                text = f"the job is not back {time.monotonic() - self._since:.0f} s after {kind}"
                self.diary.accuse("not_back", text, allowed=limit(), **self._state())
                raise Over
        took = time.monotonic() - self._since
        self.diary.recovered(kind, took)
        round_ = self._checker.newest
        assert round_
        for agent in self._agents():
            for pid in agent.processes().keys() - {record["pid"] for record in round_.members.values()}:
                self._growth.look(agent.node, pid)
        if isinstance(server := self._parts.get("server"), Server):
            self._growth.look("rdzv serve", server.pid)
        self.diary.note(f"back after {took:.1f} s in round {round_.number} with {round_.size} worker(s)")

    def _too_long(self, limit: float) -> bool:
        """Since the last thing that was done to the job, or the first word of the last agent that was started."""
        now = time.monotonic()
        silent = [agent.started for agent in self._agents() if not agent.heard]
        return now > min(silent) + _FIRST_WORD_S if silent else now > self._since + limit

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

    # faults: each is a generator that yields what it waits for, a condition at a time

    def _timed(self, fault: Fault, begun: float) -> Steps:
        yield lambda: time.monotonic() >= begun + fault.after
        self.diary.faults[fault.kind] += 1
        self.diary.event("fault", **{key: value for key, value in asdict(fault).items() if value})
        if fault.kind.endswith("_service"):
            yield from self._of_service(fault)
        else:
            yield from getattr(self, f"_{fault.kind}")(fault, self._job.nodes[fault.target])
        self._since = time.monotonic()
        self.diary.event("over", kind=fault.kind, target=fault.target)

    def _over(self, fault: Fault) -> Steps:
        since = time.monotonic()
        if fault.waits:
            yield lambda: self._others_went_on(fault, since)
        yield _after(fault.lasts)

    def _kill_agent(self, fault: Fault, node: Node, number: signal.Signals = signal.SIGKILL) -> Steps:
        with _impaired(node):
            if node.agent is not None:
                node.agent.send(number)
            yield lambda: self._has_ended(node)
        yield from self._over(fault)
        self._start(node)

    def _term_agent(self, fault: Fault, node: Node) -> Steps:
        return self._kill_agent(fault, node, signal.SIGTERM)

    def _stop_agent(self, fault: Fault, node: Node) -> Steps:
        if (agent := node.agent) is not None:
            with _impaired(node), _then(agent.send, signal.SIGCONT):
                agent.send(signal.SIGSTOP)
                yield from self._over(fault)

    def _cut(self, fault: Fault, node: Node) -> Steps:
        with _impaired(node):
            self._checker.cut(node.name, time.monotonic())
            self._lan.cut(node.host)
            with _then(self._heal, node):
                yield from self._over(fault)

    def _heal(self, node: Node) -> None:
        self._lan.mend(node.host)
        self._checker.healed(node.name, time.monotonic())

    def _kill_worker(self, fault: Fault, node: Node) -> Steps:
        for pid in (yield from self._one_worker(fault, node)):
            send(pid, signal.SIGKILL)

    def _stop_worker(self, fault: Fault, node: Node) -> Steps:
        for pid in (yield from self._one_worker(fault, node)):
            send(pid, signal.SIGSTOP)
            with _then(send, pid, signal.SIGCONT):
                yield _after(fault.lasts)

    def _one_worker(self, fault: Fault, node: Node) -> Steps:
        """Returns its pid in a list, which is empty if it does not come."""
        found: list[int] = []
        late = _after(_WORKER_S)

        def look() -> bool:
            found[:] = node.agent.workers()[:1] if node.agent else []
            return bool(found) or late()

        yield look
        self.diary.note(f"{fault}: pid {found or 'none'}")
        return found

    def _of_service(self, fault: Fault) -> Steps:
        part, kills = self._parts[fault.target], fault.kind.startswith("kill")
        self._away.add(fault.target)
        (part.kill if kills else part.stop)()
        with _then(self._away.discard, fault.target), _then(part.restart if kills else part.cont):
            yield _after(fault.lasts)

    def _others_went_on(self, fault: Fault, since: float) -> bool:
        """Or they are late, or too few."""
        took = time.monotonic() - since
        if self._is_back(since):
            self.diary.recovered(f"{fault.kind}_others", took)
            self.diary.note(f"the others went on after {took:.1f} s")
            return True
        burst, limit = self.diary.burst, self._limit()
        if took > limit and burst is not None and len(burst.faults) == 1:
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

    def _wait(self, condition: Condition, limit: float) -> bool:
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
        """Within which the job is back once nothing is wrong any more, and all agents have said their first word."""
        burst, seconds = self.diary.burst, _ROUND_S
        kinds = {fault.kind for fault in burst.faults} if burst else set()
        if kinds - {"kill_worker", "term_agent"}:
            # a node is not known to be lost before ttl has passed; who fails with it asks for as long, and a second
            seconds += 2 * self._ttl + 1 + max(_REACH_S, self._ttl + 1) + _AGAIN_S
        if "stop_worker" in kinds:
            seconds += _STOPPED_WORKER_S
        return self._allowed(seconds)

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
