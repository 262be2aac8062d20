"""Looking for processes that live longer than they may: after their agent, or after the round they belong to."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rdzv_plugins.testing.processes import kill
from soak.checker import World
from soak.diary import Diary
from soak.expectations import LEFT_BEHIND_S
from soak.job import AgentProcess, Job

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
