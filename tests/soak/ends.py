"""Agents that have ended: as they were told to, as the documentation says, or as they must not."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from soak.diary import Diary
from soak.expectations import Promises, codes_of, documented_end
from soak.job import AgentProcess, Node
from soak.schedule import Fault
from soak.tally import Tally
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
