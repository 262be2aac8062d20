"""One soak: a job, faults from a schedule, and the watch over both. One thread; everything goes through ``tick``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kits.hosts.hosts import Lan

from soak.checker import Checker
from soak.diary import Diary, Tally
from soak.ends import Ends, Leftovers
from soak.expectations import END_S, FIRST_WORD_S, GIVE_UP_S, LEFT_BEHIND_S, Promises
from soak.injector import Condition, Injector
from soak.job import Job, Node, temporary_files
from soak.schedule import Burst, Fault
from soak.service import Service
from soak.transcripts import Records, said

_TICK_S = 0.05
_TO_END_S = 60.0
"""An agent that got SIGTERM: torch gives its workers 30 s, farewells take a few."""
_LOAD = 3.0
"""Limits grow with the load of the machine, so many times at most: another one would hide what is to be found."""


class GivenUp(Exception):
    """The job has ended, or does not come back: what is under way is to be undone."""


class Soak:
    """Does bursts of faults, and watches what they do to the job. ``directory`` keeps all that was seen."""

    def __init__(
        self, directory: Path, lan: Lan, job: Job, service: Service, promises: Promises, min_nodes: int
    ) -> None:
        self.lan, self.job, self.service = lan, job, service
        self.directory, self.promises, self.min_nodes = directory, promises, min_nodes
        self.diary = Diary(directory)
        self.tally = Tally(self.diary.violations)
        self.checker = Checker(heard_s=promises.ttl * promises.slack)
        self.interrupted = False
        self._records = Records(directory / "records")
        self._leftovers = Leftovers(job, self.diary)
        self._ends = Ends(promises, self.diary, self.tally)
        self._seen = 0  # of the checker's violations
        self._done: list[Fault] = []  # those of the burst that have begun
        self._since = 0.0  # nothing was done to the job after that
        self._abandoned = False

    def close(self) -> None:
        """Nothing of the job is left, nor of its service."""
        self.job.kill_all()
        self.service.close()
        self.diary.close()

    def note(self, text: str) -> None:
        self.diary.note(text)

    # the job

    def begin(self) -> None:
        """A new job on all nodes that are to be there, and its first round."""
        nodes = [node for node in self.job.nodes.values() if node.name in self._present]
        self.job.number += 1
        self.checker.new_job(time.monotonic())
        self._since = time.monotonic()
        for node in nodes:
            node.impaired, node.uncertain = 0, False
            self.start(node)
        self.note(f"job {self.job.run_id} starts on {', '.join(sorted(self._present))}")
        self.diary.event("job", run=self.job.run_id, nodes=sorted(self._present))
        while not self._is_back() and not self.interrupted:
            self.tick()
            self._give_up_if_ended()
            limit = self.promises.start_limit() * self._load()
            if self._too_long(limit):
                text = f"job {self.job.run_id} does not work {limit:.0f} s after its start"
                self.diary.accuse("not_started", text, **self._state())
                raise GivenUp

    def start(self, node: Node) -> None:
        if self._abandoned or node.up:
            return
        agent = self.job.start(node)
        self._since = time.monotonic()
        self.diary.event("agent", node=node.name, pid=agent.pid, log=agent.transcript.name)

    def run(self, bursts: Iterable[Burst], present: Iterable[str], until: float) -> None:
        """Until the clock says ``until``; then the job is let end."""
        self._present = set(present)
        up = False
        for burst in bursts:
            if time.monotonic() >= until or self.interrupted:
                break
            try:
                if not up:
                    self.begin()
                    up = True
                self._do(burst)
            except GivenUp:
                self._clear_away()
                up = False
        if up and not self.interrupted:
            try:
                self._let_end()
                self.tally.jobs["done"] += 1
            except GivenUp:
                pass
        self._clear_away()

    def _do(self, burst: Burst) -> None:
        self.diary.burst, self._done = burst, []
        self._wait(lambda: False, burst.pause)
        for fault in burst.faults:
            if fault.kind == "leave":
                self._present.discard(fault.target)
            elif fault.kind == "arrive":
                self._present.add(fault.target)
        for node, seconds in burst.start_s.items():
            self.job.workers_start_in(node, seconds)
        self.note(f"burst {burst.number}: {burst}")
        self.tally.bursts += 1
        begun = self._since = time.monotonic()
        injector = Injector(self)
        running = [self._timed(injector, fault, begun) for fault in burst.faults]
        try:
            self._drive(running)
            self._since = max(self._since, time.monotonic())
            self._wait_back(burst)
        finally:
            for each in running:
                each.close()
            self._done = []

    def _timed(self, injector: Injector, fault: Fault, begun: float) -> Iterator[Condition]:
        yield lambda: time.monotonic() >= begun + fault.after
        self.tally.faults[fault.kind] += 1
        self._done.append(fault)
        self.diary.event("fault", **{key: value for key, value in asdict(fault).items() if value})
        yield from injector.do(fault)
        self._since = time.monotonic()
        self.diary.event("over", kind=fault.kind, target=fault.target)

    def _drive(self, running: list[Iterator[Condition]]) -> None:
        """All of them to their ends, side by side."""
        waiting: list[tuple[Iterator[Condition], Condition]] = [(each, lambda: True) for each in running]
        while waiting:
            later = []
            for each, condition in waiting:
                after: Condition | None = condition
                while after is not None and (after() or self.interrupted):
                    after = next(each, None)
                if after is not None:
                    later.append((each, after))
            waiting = later
            self.tick()
            self._give_up_if_ended()

    def _wait_back(self, burst: Burst) -> None:
        """Until all nodes that can take part work together; says so if that takes too long."""
        limit = self._limit(burst)
        while not self._is_back():
            self.tick()
            self._give_up_if_ended()
            if self.interrupted:
                return
            if self._ends.ill and not self._has_minimum():
                self._job_has_ended()
            limit = self._limit(burst)
            if self._too_long(limit):
                self._too_late(burst.kind, limit)
                break
        world = self.checker.newest
        assert world
        took = time.monotonic() - self._since
        self.tally.recovered(burst.kind, took, limit)
        missing = bool(self._ends.ill)
        self._ends.accuse_nodes()
        self._leftovers.works(world)
        for name in sorted(self._present):
            self.start(self.job.nodes[name])
        if missing:
            self._wait(self._is_back, limit)
        self.note(f"back after {took:.1f} s with {world.size} worker(s)")

    def _too_late(self, kind: str, limit: float) -> None:
        """It is not back: watch for a while whether it ever comes."""
        state = self._state()
        waited = time.monotonic() - self._since
        came = self._wait(self._is_back, GIVE_UP_S)
        took = time.monotonic() - self._since
        self.tally.late[kind] += 1
        what = f"came back after {took:.1f} s" if came else f"was not back after {took:.0f} s"
        self.diary.accuse(
            "not_back", f"the job {what}; {limit:.1f} s are allowed", kind_of_fault=kind, then=state, waited=waited
        )
        if not came:
            self.tally.jobs["not back"] += 1
            raise GivenUp

    def _too_long(self, limit: float) -> bool:
        """Since the last thing that was done to the job, or the first word of the last agent that was started."""
        now = time.monotonic()
        silent = [node.agent.started for node in self.job.nodes.values() if node.agent and not node.agent.heard]
        return now > min(silent) + FIRST_WORD_S if silent else now > self._since + limit

    def _limit(self, burst: Burst) -> float:
        return self.promises.limit(burst) * self._load()

    @staticmethod
    def _load() -> float:
        """How much longer things take, since others use the processors as well."""
        return min(_LOAD, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))

    def _let_end(self) -> None:
        """The workers are told to end: so does the job, everywhere, with exit code 0."""
        self.diary.burst, self._done = None, []
        self._wait(lambda: False, 1.0)
        agents = [node.agent for node in self.job.nodes.values() if node.up and node.agent]
        self._ends.told |= {agent.token for agent in agents}
        (self.directory / "stop").touch()
        limit = END_S * self.promises.slack * self._load()
        if not self._wait(lambda: all(agent.ended is not None for agent in agents), limit):
            still = [agent.node for agent in agents if agent.ended is None]
            self.diary.accuse(
                "not_ended", f"the workers were done {limit:.0f} s ago; still there: {still}", **self._state()
            )
        self._wait(lambda: not self._leftovers.pending, 5 * LEFT_BEHIND_S)
        if all(agent.ended is not None for agent in agents):
            for node in {agent.node for agent in agents}:
                if left := temporary_files(self.directory / "tmp" / node):
                    self.diary.accuse(
                        "left_files", f"{node}: {len(left)} files are left for ever: {left[:5]}", node=node
                    )

    def _clear_away(self) -> None:
        """Nothing of the job is left, and no fault either."""
        self._abandoned = True
        self.job.kill_all()
        self._leftovers.forget()
        self._ends.forget()
        self._feed()
        self._abandoned = False

    # for the injector

    def others_went_on(self, fault: Fault, since: float) -> bool:
        if self._is_back(since):
            self.tally.recovered(f"{fault.kind}_others", time.monotonic() - since, self._others_limit())
            self.note(f"the others went on after {time.monotonic() - since:.1f} s")
            return True
        alone = self.diary.burst is not None and len(self.diary.burst.faults) == 1
        late = time.monotonic() - since > self._others_limit()
        if late and alone:
            text = f"the others have not gone on {self._others_limit():.1f} s after {fault.kind} {fault.target}"
            self.diary.accuse("not_back", text, kind_of_fault=f"{fault.kind}_others", then=self._state())
        return late or not self._has_minimum()

    def _others_limit(self) -> float:
        return self._limit(self.diary.burst) if self.diary.burst else 0.0

    def has_ended(self, node: Node) -> bool:
        agent = node.agent
        if agent is None or agent.ended is not None:
            return True
        late = time.monotonic() - self._since > _TO_END_S * self.promises.slack * self._load()
        if late and signal.SIGKILL not in agent.sent:
            self.diary.accuse("not_ended", f"the agent of {node.name} got SIGTERM and does not end", **self._state())
            agent.send(signal.SIGKILL)
        return False

    def cut_off(self, node: Node) -> None:
        self.checker.cut(node.name, time.monotonic())

    def healed(self, node: Node) -> None:
        self.checker.healed(node.name, time.monotonic())

    # watching

    def tick(self) -> None:
        """Look at everything once."""
        time.sleep(_TICK_S)
        self._feed()
        if died := self.service.died():
            self.diary.accuse("service", died)
            raise GivenUp
        for node in self.job.nodes.values():
            agent = node.agent
            if agent is not None and not agent.heard and agent.spoke():
                agent.heard, self._since = True, time.monotonic()
            if agent is not None and agent.poll():
                agent.heard = True
                self._ends.judge(node, agent, self._done)
                self._leftovers.ended(agent)
        for name in [name for name in self._ends.to_replace if not self.job.nodes[name].impaired]:
            self._ends.to_replace.discard(name)
            self.start(self.job.nodes[name])  # as a scheduler does
        self._leftovers.look(self.checker.newest)

    def _feed(self) -> None:
        for record in self._records.new():
            self.checker.feed(record)
        self.checker.settle()
        new = self.checker.violations[self._seen :]
        self._seen += len(new)
        for violation in new:
            self.diary.add(violation)

    def _wait(self, condition: Callable[[], bool], limit: float) -> bool:
        deadline = time.monotonic() + limit
        while not condition():
            if time.monotonic() >= deadline or self.interrupted:
                return False
            self.tick()
            if not self._ends.told:
                self._give_up_if_ended()
        return True

    def _is_back(self, since: float | None = None) -> bool:
        """All that can take part work in one world, which has done steps of which each began after ``since``."""
        world = self.checker.newest
        agents = {node.agent.token for node in self.job.nodes.values() if node.takes_part and node.agent}
        perhaps = {node.agent.token for node in self.job.nodes.values() if node.uncertain and node.agent}
        return (
            world is not None
            and {record["agent"] for record in world.members.values()} - perhaps == agents
            and world.worked_since(self._since if since is None else since)
        )

    def _has_minimum(self) -> bool:
        return len([node for node in self.job.nodes.values() if node.up]) >= self.min_nodes

    def _give_up_if_ended(self) -> None:
        """Nobody is left who could go on."""
        if self._ends.over_since:
            late = time.monotonic() > self._ends.over_since + self._others_limit()
            agents = [node.agent for node in self.job.nodes.values() if node.up and node.agent]
            if not late and self._ends.waits_for(agents, self.checker.agents):
                return
            self.tally.jobs["ended as documented"] += 1
            self.note("the job has ended, as documented")
            raise GivenUp
        if self._ends.ill and not any(node.up for node in self.job.nodes.values()):
            self._job_has_ended()

    def _job_has_ended(self) -> None:
        self._ends.accuse_job()
        self.tally.jobs["ended by a fault"] += 1
        raise GivenUp

    def _state(self) -> dict[str, Any]:
        """Who is there, and what each agent has said last."""
        world = self.checker.newest
        nodes = {
            node.name: {
                "up": node.up,
                "impaired": node.impaired or node.uncertain,
                "workers": self.job.workers(node),
                "log": said(node.agent.transcript) if node.agent else [],
            }
            for node in self.job.nodes.values()
        }
        shown = {"ranks": sorted(world.members), "size": world.size, "begun": world.begun} if world else {}
        return {"nodes": nodes, "newest_world": shown}
