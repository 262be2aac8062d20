"""The agents of one launch of one run, from their files, on one clock: who was in which round, and when.

What cannot be read is named, and affects nothing else.
"""

from __future__ import annotations

import collections
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rdzv_launcher.run.timeline import SUFFIX, TimelineRecord, parse
from rdzv_launcher.tools.timeline.clocks import Exchange, Offset, estimate
from rdzv_plugins.errors import UsageError
from rdzv_plugins.plain_text import some

_LONGEST = 1 << 20
"""The most bytes of a line."""
_LINES_NAMED = 3


@dataclass
class AgentTimeline:
    """One agent process: its events, in the order of its monotonic clock."""

    name: str
    """Unique to the process, as in its events."""
    run: str
    host: str
    file: str
    records: list[TimelineRecord] = field(default_factory=list)

    @property
    def clock(self) -> str:
        """The id of its monotonic clock: agents with the same id share one."""
        told = self.records[0].facts.get("clock")
        return told if isinstance(told, str) and told else f"agent {self.name}"

    @property
    def title(self) -> str:
        """The agent's name for people."""
        nodes = [each.node for each in self.records if each.node is not None]
        pid = self.records[0].facts.get("pid")
        whose = f" (pid {pid})" if isinstance(pid, int) else ""
        return f"node {nodes[-1]} on {self.host}{whose}" if nodes else f"a node on {self.host}{whose}"


def read(paths: Iterable[str]) -> tuple[list[AgentTimeline], list[str]]:
    """All agents in the files, and in the files of the directories; and a sentence for everything that was left out.

    Raises ``UsageError`` if there is no event at all.
    """
    agents: dict[tuple[str, str], AgentTimeline] = {}
    complaints: list[str] = []
    for file in dict.fromkeys(file for path in paths for file in _files_of(path, complaints)):
        for agent in _read_file(file, complaints):
            known = agents.setdefault((agent.run, agent.name), agent)
            if known is not agent:
                complaints.append(f"{file}: skipped: agent {agent.name} is already in {known.file}")
    if not agents:
        raise UsageError(
            "; ".join(complaints) or "no file to read",
            remedy="Give the --timeline directory, or files from it.",
        )
    return list(agents.values()), complaints


def _files_of(path: str, complaints: list[str]) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
        return
    try:
        names = sorted(each for each in os.listdir(path) if each.endswith(SUFFIX))
    except OSError as error:
        complaints.append(f"{path}: {error.strerror}")
        return
    if not names:
        complaints.append(f"{path}: no file ends in {SUFFIX}")
    yield from (os.path.join(path, name) for name in names)


def _read_file(file: str, complaints: list[str]) -> list[AgentTimeline]:
    """The agents in one file; several, if somebody has put files together."""
    agents: dict[tuple[str, str], AgentTimeline] = {}
    wrong: dict[str, list[int]] = {}
    lines = 0
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):  # a pipe would keep us waiting
            complaints.append(f"{file}: not a regular file")
            return []
        with open(file, "rb") as stream:
            while line := stream.readline(_LONGEST):
                lines += 1
                if not line.strip():
                    continue
                try:
                    record = parse(line)
                except ValueError as error:
                    torn = not line.endswith(b"\n") and len(line) < _LONGEST
                    why = "incomplete: its agent was killed, or is still writing" if torn else str(error)
                    wrong.setdefault(why, []).append(lines)
                    continue
                agent = AgentTimeline(record.agent, record.run, record.host, file)
                agents.setdefault((record.run, record.agent), agent).records.append(record)
    except OSError as error:
        complaints.append(f"{file}: {error.strerror}")
    else:
        complaints += [] if lines else [f"{file}: empty"]
    for why, numbers in wrong.items():
        complaints.append(f"{file}: skipped {_lines(numbers)}: {why}")
    for agent in agents.values():
        agent.records.sort(key=lambda each: each.mono)
    return list(agents.values())


def _lines(numbers: list[int]) -> str:
    return f"line{'s' if len(numbers) > 1 else ''} {some(numbers, _LINES_NAMED)}"


_FILES_NAMED = 5


@dataclass
class RoundTimeline:
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
    agent: AgentTimeline
    record: TimelineRecord


class JobTimeline:
    """The whole job, for those who read it."""

    def __init__(self, agents: Sequence[AgentTimeline]) -> None:
        """``agents`` are those of one launch; at least one."""
        self.agents = {each.name: each for each in agents}
        self.run = agents[0].run
        machines = collections.Counter(each.clock for each in agents)
        self.reference = min(machines, key=lambda clock: (-machines[clock], clock))
        self.hosts = {each.clock: each.host for each in reversed(agents)}
        self.epochs = {each.clock: each.records[0].wall - each.records[0].mono for each in reversed(agents)}
        """Added to a time of a clock, it gives seconds since the epoch, as that machine has them."""
        self.epoch = self.epochs[self.reference]
        guesses = {clock: base - self.epoch for clock, base in self.epochs.items()}
        self.offsets: dict[str, Offset] = estimate(self.reference, guesses, _exchanges(agents))
        self.of: dict[str, list[TimelineEvent]] = {
            agent.name: [
                TimelineEvent(record.mono + self.offsets[agent.clock].seconds, agent, record)
                for record in agent.records
            ]
            for agent in agents
        }
        """Each agent's events, in order."""
        self.events = sorted((each for events in self.of.values() for each in events), key=lambda each: each.at)
        self.rounds = _rounds(self.events)

    @property
    def begin(self) -> float:
        return self.events[0].at

    @property
    def end(self) -> float:
        return self.events[-1].at


def newest_launch(agents: Sequence[AgentTimeline], run: str | None) -> tuple[JobTimeline, list[str]]:
    """The job of ``run``, or of the newest run; and a sentence for everything that does not belong to it.

    Raises ``UsageError`` if there is none.
    """
    if run is None:
        run = max(agents, key=lambda each: max(record.wall for record in each.records)).run
    complaints = [
        f"{each.file}: it belongs to run {each.run!r}, not {run!r} (show it with --run={each.run})"
        for each in agents
        if each.run != run
    ]
    own = [each for each in agents if each.run == run]
    if not own:
        names = ", ".join(sorted({repr(each.run) for each in agents}))
        raise UsageError(f"no file belongs to run {run!r}", remedy=f"Runs found: {names}.")
    launches = _launches(own)
    earlier = [each.file for launch in launches[:-1] for each in launch]
    if earlier:
        named = some(earlier, _FILES_NAMED)
        complaints.append(f"{named}: skipped: an earlier launch of run {run!r} (to see it, name only these files)")
    return JobTimeline(launches[-1]), complaints


def _launches(agents: Sequence[AgentTimeline]) -> list[list[AgentTimeline]]:
    """The launches, oldest first: two agents with one rank in rounds of one number belong to different launches."""
    launches: list[tuple[list[AgentTimeline], set[tuple[int, int | None]]]] = []
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


def _exchanges(agents: Sequence[AgentTimeline]) -> list[Exchange]:
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
                store.after[clock] = min(record.mono, store.after.get(clock, record.mono))
            elif record.event == "complete":
                all_in.after[clock] = min(record.mono, all_in.after.get(clock, record.mono))
                if entered is not None:
                    all_in.before[clock] = max(entered, all_in.before.get(clock, entered))
                if served is not None:
                    store.before[clock] = max(served, store.before.get(clock, served))
                entered = served = None
    return [each for pair in found.values() for each in pair if each.before and each.after]


def _rounds(events: Sequence[TimelineEvent]) -> list[RoundTimeline]:
    """The complete rounds, in order. Where nodes count by themselves, rounds are told apart by time."""
    numbered: dict[int, RoundTimeline] = {}
    counted: list[RoundTimeline] = []
    for each in events:
        if each.record.event != "complete":
            continue
        world = each.record.facts.get("world")
        if each.record.facts.get("numbered") is True:
            found = numbered.setdefault(each.record.round, RoundTimeline(each.record.round))
        else:
            if not counted or each.agent.name in counted[-1].at or len(counted[-1].at) >= counted[-1].nodes > 0:
                counted.append(RoundTimeline(len(counted) + 1))
            found = counted[-1]
        found.at.setdefault(each.agent.name, each.at)
        found.nodes = max(found.nodes, world if isinstance(world, int) else 0)
    return sorted([*numbered.values(), *counted], key=lambda each: each.complete_at)
