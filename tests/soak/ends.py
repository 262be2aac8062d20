"""Agents that have ended: as they were told to, as the documentation says, or as they must not; and what is left."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from rdzv_plugins.testing.processes import kill
from soak.checker import World
from soak.diary import Diary, Tally
from soak.expectations import LEFT_BEHIND_S, Promises, codes_of, documented_end
from soak.job import AgentProcess, Job, Node
from soak.schedule import Fault
from soak.transcripts import said


class Ends:
    """Judges each, and remembers what follows from it."""

    def __init__(self, promises: Promises, diary: Diary, tally: Tally) -> None:
        self._promises, self._diary, self._tally = promises, diary, tally
        self.told: set[str] = set()
        """Tokens of agents whose workers were told to end."""
        self.forget()

    def forget(self) -> None:
        """All was cleared away."""
        self.ill: list[AgentProcess] = []
        """Those that must not have ended."""
        self.to_replace: set[str] = set()
        """Nodes whose agents have ended as documented, while the job goes on."""
        self.over_since = 0.0
        """The job ends as documented: agents that were there then are to end, too."""

    def judge(self, node: Node, agent: AgentProcess, done: Collection[Fault]) -> None:
        """``agent`` has ended, after the faults ``done``."""
        assert agent.code is not None
        self._diary.event("agent_ended", node=node.name, pid=agent.pid, code=agent.code)
        if agent.sent or agent.token in self.told:
            self._check_code(node, agent)
            return
        reason = documented_end(self._promises, node.name, agent.code, done)
        as_documented = f", as documented: {reason.why}" if reason else ""
        self._diary.note(f"the agent of {node.name} ended with {agent.code}{as_documented}")
        if reason is None:
            self.ill.append(agent)
            return
        self._tally.node_ends[f"{agent.code}: {reason.why}"] += 1
        if reason.of_job:
            self.over_since = self.over_since or time.monotonic()
        else:
            self.to_replace.add(node.name)

    def waits_for(self, agents: Iterable[AgentProcess], workers: Collection[str]) -> bool:
        """One of ``agents`` belongs to the job that ends as documented, and so has to end, too.

        ``workers`` are the tokens of agents that have had a worker. One that was started just before the job ended may
        have had none: it has met nobody of that job, waits for who serves next, and is no part of its end.
        """
        return any(agent.started < self.over_since and agent.token in workers for agent in agents)

    def accuse_nodes(self) -> None:
        """The job goes on without those that must not have ended."""
        for agent in self.ill:
            text = f"the agent of {agent.node} ended with {agent.code}, though nothing that happened to it allows that"
            self._diary.accuse("node_ended", text, node=agent.node, code=agent.code, log=said(agent.transcript))
        self.ill = []

    def accuse_job(self) -> None:
        """It does not go on."""
        codes = {agent.node: agent.code for agent in self.ill}
        logs = {agent.node: said(agent.transcript) for agent in self.ill}
        self._diary.accuse("job_ended", f"the job has ended, by exit codes {codes}", codes=codes, logs=logs)

    def _check_code(self, node: Node, agent: AgentProcess) -> None:
        allowed = codes_of(agent.sent, spoke=agent.spoke())
        if agent.code not in allowed:
            text = f"the agent of {node.name} ended with {agent.code}, not {' or '.join(map(str, allowed))}"
            sent = [each.name for each in agent.sent]
            self._diary.accuse("exit_code", text, node=node.name, sent=sent, log=said(agent.transcript))


_SURE_S = 1.0
"""They have to be seen twice, so far apart."""
_FORGET_S = 60.0


@dataclass
class _Look:
    """One that is due."""

    due: float
    agent: AgentProcess
    seen: set[int] = field(default_factory=set)
    world: str = ""
    """For an agent that lives: the world that its workers have to belong to."""


class Leftovers:
    """Call ``look`` again and again. For one thread."""

    def __init__(self, job: Job, diary: Diary) -> None:
        self._job, self._diary = job, diary
        self._looks: list[_Look] = []

    @property
    def pending(self) -> bool:
        return bool(self._looks)

    def forget(self) -> None:
        """All was cleared away."""
        self._looks.clear()

    def ended(self, agent: AgentProcess) -> None:
        """Nothing of it may be left soon."""
        self._looks.append(_Look(time.monotonic() + LEFT_BEHIND_S, agent))

    def works(self, world: World) -> None:
        """All that can take part do so in it: workers of another are left over, and those of dead agents have been."""
        here = {record["pid"] for record in world.members.values()}
        for node in self._job.nodes.values():
            strays = set(self._job.workers(node)) - here if node.takes_part else set()
            if strays and node.agent:
                self._looks.append(_Look(time.monotonic() + LEFT_BEHIND_S + _SURE_S, node.agent, strays, world.id))
        now = time.monotonic()
        for agent in self._job.agents:
            if agent.ended is not None and now > agent.ended + LEFT_BEHIND_S + 2 * _SURE_S:
                for pid in agent.processes():
                    kill(pid)
        self._job.agents = [each for each in self._job.agents if each.ended is None or now < each.ended + _FORGET_S]

    def look(self, newest: World | None) -> None:
        """At all that is due. ``newest`` is the world that works."""
        now = time.monotonic()
        due = [each for each in self._looks if each.due <= now]
        self._looks = [each for each in self._looks if each.due > now]
        for each in due:
            left = each.agent.processes()
            if each.agent.ended is None and (newest is None or newest.id != each.world):
                continue  # there is another round meanwhile, to which they may belong
            if left and not each.seen:
                self._looks.append(_Look(now + _SURE_S, each.agent, set(left)))
            elif still := {pid: command for pid, command in left.items() if pid in each.seen}:
                self._accuse(each.agent, still)

    def _accuse(self, agent: AgentProcess, processes: dict[int, str]) -> None:
        after = "its agent's end" if agent.ended else "their round"
        text = f"{agent.node}: {len(processes)} process(es) live {LEFT_BEHIND_S + _SURE_S:.0f} s after {after}"
        sent = [each.name for each in agent.sent]
        self._diary.accuse("left_behind", text, node=agent.node, processes=processes, sent=sent)
