"""What agents leave behind when they have ended, and what grows in those that go on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rdzv_plugins.testing.processes import kill
from soak.checker import World
from soak.diary import Diary
from soak.job import AgentProcess

LEFT_BEHIND_S = 2.0
"""Nothing that a worker or an agent has started lives longer after its agent has ended."""
_SURE_S = 1.0
"""It has to be seen twice, so far apart."""


@dataclass
class _Look:
    """One that is due."""

    due: float
    agent: AgentProcess
    seen: frozenset[int] = frozenset()
    world: str = ""
    """For an agent that lives: the world that its workers have to belong to."""


class Leftovers:
    """Call ``look`` again and again. For one thread."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
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

    def works(self, world: World, agents: Iterable[AgentProcess]) -> None:
        """All ``agents`` take part in it: workers of another are left over."""
        here = {record["pid"] for record in world.members.values()}
        for agent in agents:
            if strays := frozenset(agent.workers()) - here:
                self._looks.append(_Look(time.monotonic() + LEFT_BEHIND_S + _SURE_S, agent, strays, world.id))

    def look(self, newest: World | None) -> None:
        """At all that is due. ``newest`` is the world that works."""
        now = time.monotonic()
        due = [each for each in self._looks if each.due <= now]
        self._looks = [each for each in self._looks if each.due > now]
        for each in due:
            if each.agent.ended is None and (newest is None or newest.id != each.world):
                continue  # there is another round meanwhile, to which they may belong
            left = each.agent.processes()
            if left and not each.seen:
                self._looks.append(_Look(now + _SURE_S, each.agent, frozenset(left)))
            elif still := {pid: command for pid, command in left.items() if pid in each.seen}:
                self._accuse(each.agent, still)

    def _accuse(self, agent: AgentProcess, processes: dict[int, str]) -> None:
        after = "its agent's end" if agent.ended else "their round"
        text = f"{agent.node}: {len(processes)} process(es) live {LEFT_BEHIND_S + _SURE_S:.0f} s after {after}"
        sent = [each.name for each in agent.sent]
        self._diary.accuse("left_behind", text, node=agent.node, processes=processes, sent=sent)
        for pid in processes:
            kill(pid)


_USUAL = 3
"""So many looks at a process say what it needs: the rounds that it has begun with."""
_ROOM = {"descriptors": 20, "MiB": 50}
"""So much more than that, and half as much again, is no growth."""


class Growth:
    """Call ``look`` at rest, again and again, at processes that go on: descriptors and memory do not grow."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        self._seen: dict[tuple[int, str], list[int]] = {}

    def look(self, name: str, pid: int) -> None:
        """At a process; nothing happens if it has ended."""
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            has = {"descriptors": len(os.listdir(f"/proc/{pid}/fd")), "MiB": pages * os.sysconf("SC_PAGE_SIZE") >> 20}
        except OSError:
            return
        for what, count in has.items():
            seen = self._seen.setdefault((pid, what), [])
            seen.append(count)
            if grown(seen, _ROOM[what]):
                usual = max(seen[:_USUAL])
                self._diary.accuse("grows", f"{name} (pid {pid}) has {count} {what}, {usual} at first", node=name)
                seen.clear()


def grown(seen: Sequence[int], room: int) -> bool:
    """Whether the last of these counts is much more than the first ones."""
    return len(seen) > _USUAL and seen[-1] > 1.5 * max(seen[:_USUAL]) + room
