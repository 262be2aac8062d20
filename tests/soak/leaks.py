"""What agents leave behind when they have ended, and what grows in those that go on."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from rdzv_plugins.testing.processes import kill
from soak.diary import Diary
from soak.job import AgentProcess

LEFT_BEHIND_S = 2.0
"""Nothing that a worker or an agent has started lives longer after its agent has ended."""


class Leftovers:
    """Call ``look`` again and again. For one thread."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        self.due: list[tuple[float, AgentProcess]] = []
        """When to look, and at what."""

    def ended(self, agent: AgentProcess) -> None:
        """Nothing of it may be left soon; a second is for this machine to notice."""
        self.due.append((time.monotonic() + LEFT_BEHIND_S + 1, agent))

    def look(self) -> None:
        """At all that is due."""
        while self.due and self.due[0][0] <= time.monotonic():
            _, agent = self.due.pop(0)
            if left := agent.processes():
                text = f"{agent.node}: {len(left)} process(es) live {LEFT_BEHIND_S + 1:g} s after their agent's end"
                sent = [each.name for each in agent.sent]
                self._diary.accuse("left_behind", text, node=agent.node, processes=left, sent=sent)
            for pid in left:
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
