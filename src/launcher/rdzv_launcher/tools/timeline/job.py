"""The agents of one launch of one run, on one clock: who was in which round, and when."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field

from rdzv_launcher.run.timeline import Record
from rdzv_launcher.tools.timeline.clocks import Exchange, Offset, estimate
from rdzv_launcher.tools.timeline.reading import Agent
from rdzv_plugins.errors import UsageError
from rdzv_plugins.plain_text import some

_FILES_NAMED = 5


@dataclass
class Round:
    """A round that was complete. Times are in seconds by the reference's clock."""

    number: int
    at: dict[str, float] = field(default_factory=dict)
    """When each node knew that it was complete, by the agents' names."""
    nodes: int = 0
    """How many nodes it had."""

    @property
    def complete_at(self) -> float:
        """When the last node knew that it was complete."""
        return max(self.at.values())


@dataclass(frozen=True)
class TimelineEvent:
    """An event, with its time by the reference's clock, in seconds."""

    at: float
    agent: Agent
    record: Record


class JobTimeline:
    """The whole job, for those who read it."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        """``agents`` are those of one launch; at least one."""
        self.agents = {each.name: each for each in agents}
        self.run = agents[0].run
        machines = collections.Counter(each.clock for each in agents)
        self.reference = min(machines, key=lambda clock: (-machines[clock], clock))
        self.hosts = {each.clock: each.host for each in reversed(agents)}
        bases = {each.clock: each.records[0].wall - each.records[0].mono for each in reversed(agents)}
        self.epoch = bases[self.reference]
        """Added to a time of the reference's clock, it gives seconds since the epoch."""
        guesses = {clock: base - self.epoch for clock, base in bases.items()}
        self.offsets: dict[str, Offset] = estimate(self.reference, guesses, _exchanges(agents))
        self.events = sorted(
            (
                TimelineEvent(record.mono + self.offsets[agent.clock].seconds, agent, record)
                for agent in agents
                for record in agent.records
            ),
            key=lambda each: each.at,
        )
        self._by_agent: dict[str, list[TimelineEvent]] = {name: [] for name in self.agents}
        for each in self.events:
            self._by_agent[each.agent.name].append(each)
        self.rounds = _rounds(self.events)

    @property
    def begin(self) -> float:
        """The time of the first event."""
        return self.events[0].at

    @property
    def end(self) -> float:
        """The time of the last event."""
        return self.events[-1].at

    def of(self, name: str) -> list[TimelineEvent]:
        """An agent's events, in order."""
        return self._by_agent[name]


def newest_launch(agents: Sequence[Agent], run: str | None) -> tuple[JobTimeline, list[str]]:
    """The job of ``run``, or of the newest run; and a sentence for everything that does not belong to it.

    Raises ``UsageError`` if there is none.
    """
    if run is None:
        run = max(agents, key=lambda each: max(record.wall for record in each.records)).run
    complaints = [
        f"{each.file}: it is of run {each.run!r}, not of {run!r}: left out (--run={each.run} shows it)"
        for each in agents
        if each.run != run
    ]
    own = [each for each in agents if each.run == run]
    if not own:
        names = ", ".join(sorted({repr(each.run) for each in agents}))
        raise UsageError(f"no file has a run {run!r}", remedy=f"There is {names}.")
    launches = _launches(own)
    earlier = [each.file for launch in launches[:-1] for each in launch]
    if earlier:
        named = some(earlier, _FILES_NAMED)
        complaints.append(f"{named}: left out, of an earlier launch of run {run!r}: name these files alone to see it")
    return JobTimeline(launches[-1]), complaints


def _launches(agents: Sequence[Agent]) -> list[list[Agent]]:
    """The launches, oldest first: two agents with one rank in rounds of one number belong to different launches."""
    launches: list[tuple[list[Agent], set[tuple[int, int | None]]]] = []
    for agent in sorted(agents, key=lambda each: each.records[0].wall):
        complete = [each for each in agent.records if each.event == "complete" and each.facts.get("numbered") is True]
        places = {(each.round, each.node) for each in complete}
        fitting = (launch for launch in reversed(launches) if not launch[1] & places)
        launch = next(fitting, None)
        if launch is None:
            launch = [], set()
            launches.append(launch)
        launch[0].append(agent)
        launch[1].update(places)
    return [agents for agents, _ in launches]


def _exchanges(agents: Sequence[Agent]) -> list[Exchange]:
    """Each round's exchanges: who said it is there, and who knew that all are; and its store, served and reached."""
    found: dict[int, tuple[Exchange, Exchange]] = {}
    for agent in agents:
        clock, entered, served = agent.clock, None, None
        for record in agent.records:
            if record.event in ("joined", "reached"):
                entered = record.mono
            elif record.event == "served":
                served = record.mono
            if record.facts.get("numbered") is not True:
                continue
            all_in, store = found.setdefault(record.round, (Exchange({}, {}), Exchange({}, {})))
            if record.event == "reached":
                _earliest(store.after, clock, record.mono)
            elif record.event == "complete":
                _earliest(all_in.after, clock, record.mono)
                if entered is not None:
                    _latest(all_in.before, clock, entered)
                if served is not None:
                    _latest(store.before, clock, served)
                entered = served = None
    return [each for pair in found.values() for each in pair if each.before and each.after]


def _latest(times: object, clock: str, at: float) -> None:
    assert isinstance(times, dict)
    times[clock] = max(at, times.get(clock, at))


def _earliest(times: object, clock: str, at: float) -> None:
    assert isinstance(times, dict)
    times[clock] = min(at, times.get(clock, at))


def _rounds(events: Sequence[TimelineEvent]) -> list[Round]:
    """The complete rounds, in order. Where nodes count by themselves, rounds are told apart by time."""
    numbered: dict[int, Round] = {}
    counted: list[Round] = []
    for each in events:
        if each.record.event != "complete":
            continue
        world = each.record.facts.get("world")
        if each.record.facts.get("numbered") is True:
            found = numbered.setdefault(each.record.round, Round(each.record.round))
        else:
            if not counted or each.agent.name in counted[-1].at or len(counted[-1].at) >= counted[-1].nodes > 0:
                counted.append(Round(len(counted) + 1))
            found = counted[-1]
        found.at.setdefault(each.agent.name, each.at)
        found.nodes = max(found.nodes, world if isinstance(world, int) else 0)
    return sorted([*numbered.values(), *counted], key=lambda each: each.complete_at)
