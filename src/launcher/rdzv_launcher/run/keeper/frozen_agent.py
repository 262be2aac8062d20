"""What a keeper does while its agent stands still: it pauses the workers once their round is not known to hold.

A page that the agent writes says until when the round is known to hold, and when the agent last looked. When the agent
resumes, it finds out what should become of the workers, and continues or kills them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Sequence

from rdzv_launcher.run.keeper.descendants import Process, send
from rdzv_plugins.clock import now_ns
from rdzv_plugins.round_page import BEAT, NEVER, PAUSE_AT, PAUSED, RUNNING, STATE, STILL

_PAGE_S = 0.25
"""How often the page is read: the clock of a wait stands still while a machine sleeps, the page's does not."""
_LEAST_S = 0.01
_QUICK_LOOKS = 2
"""How many times the workers are paused in quick succession during one standstill, which may last for hours: the second
look finds workers that were just being started.
"""


class FrozenAgent:
    """Pauses the workers of an agent that stands still. One per keeper.

    ``read`` returns the numbers of the agent's ``RoundPage``; None: there is none. ``stop`` pauses the workers and all
    that they have started, and returns the paused processes.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[int]] | None,
        stop: Callable[[], Collection[Process]],
        send: Callable[[Process, int], bool] = send,
        now_ns: Callable[[], int] = now_ns,
    ) -> None:
        self._read, self._stop, self._send, self._now_ns = read, stop, send, now_ns
        self._looks = (0, 0)  # when the standstill began, and how often workers were paused in it

    def pause(self) -> float:
        """Seconds until ``look`` has to be called; negative: not until the agent has said something."""
        if self._read is None:
            return -1
        page = self._read()
        if page[STATE] != RUNNING or page[STILL] == NEVER:
            return -1
        if page[BEAT] == self._looks[0] and self._looks[1] >= _QUICK_LOOKS:
            return _PAGE_S
        due = max(page[PAUSE_AT], page[BEAT] + page[STILL]) - self._now_ns()
        return max(_LEAST_S, min(due / 1e9, _PAGE_S))

    def look(self) -> None:
        """Pause the workers if the agent stands still, and its session may have ended."""
        if self._read is None or not self._stands_still(self._read()):
            return
        since, looks = self._read()[BEAT], self._looks
        self._looks = since, looks[1] + 1 if looks[0] == since else 1
        paused = self._stop()
        # the agent has resumed meanwhile: it pauses them itself, unless it has found that they may run
        page = self._read()
        if not self._stands_still(page) and page[STATE] != PAUSED:
            for process in paused:
                self._send(process, signal.SIGCONT)

    def _stands_still(self, page: Sequence[int]) -> bool:
        now = self._now_ns()
        return page[STATE] == RUNNING and now >= page[PAUSE_AT] and now - page[BEAT] >= page[STILL]
