"""The guardian: a small process beside each agent that sees to it that nothing outlives the agent.

It runs in an interpreter without site-packages, in a session of its own, and imports neither torch nor the rest of
this project: about 20 ms and 10 MB. It sleeps until the agent is no more, however it ended, and then kills everything
that carries the agent's mark, until nothing is left. And where the node's session is only known to live for a while,
it pauses the workers of an agent that has stood still past that: the agent, when it goes on, finds out what to do.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

from rdzv_launcher.run.fence.marked import Marked
from rdzv_launcher.run.fence.run_directory import remove
from rdzv_plugins.clock import now_ns
from rdzv_plugins.round_page import BEAT, PAUSE_AT, PAUSED, RUNNING, STATE, STILL, read

BOOT = (
    "import os, sys; sys.path += sys.argv[1].split(os.pathsep); "
    "from rdzv_launcher.run.fence.guardian import main; main()"
)
"""The program of the interpreter. Its arguments: ``ROOTS``, the agent's pid, its mark, and the number
of the descriptor of the ``RoundPage``."""

_LOOK_S = 0.05
_QUIET_LOOKS = 5
"""How often nothing is to be found: a process that is just starting shows its environment a moment later."""
_LONGEST_PAUSE_S = 2.0
_PATIENCE_S = 600.0
"""Something that is stuck in the kernel may never end."""
_PAGE_S = 0.25
_QUICK_LOOKS = 2
"""How often the workers of one standstill are paused in quick succession: whoever was just being started is seen by the
second look. It may last for hours, and each look reads every process of the machine."""
_LEAST_S = 0.01
DEAF_TO = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGPIPE,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Schedulers send some of them to all processes of a job."""


class Guardian:
    """The guardian of one agent. What it has to know it is told line by line, on its standard input."""

    def __init__(self, agent: int, mark: str, page: int) -> None:
        self._agent, self._page = agent, page
        self._marked = Marked(mark, keep=frozenset({agent}))
        self._paths: list[str] = []
        self._told = b""
        self._dismissed = False
        self._looks = (0, 0)  # when the standstill began, and how often workers were paused in it

    def run(self) -> None:
        """Wait until the agent has ended, then kill and remove all that it has left behind."""
        if self._wait():
            self._kill()
            for path in self._paths:
                remove(path)

    def _wait(self) -> bool:
        """True when the agent is no more, False when it needs no guardian any longer."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        try:
            # a process that the agent has forked may hold the other end of the pipe open
            agent = os.pidfd_open(self._agent)
            poll.register(agent, select.POLLIN)
        except (OSError, AttributeError):  # it has gone, and the pipe says so; or an old kernel
            agent = -1
        while os.getppid() == self._agent:
            for fd, _ in poll.poll(self._pause_s() * 1000):
                if fd == agent:
                    return True
                data = os.read(0, 4096)
                if not data or not self._take(data):
                    return not self._dismissed
            self._look()
        return True

    def _take(self, data: bytes) -> bool:
        *lines, self._told = (self._told + data).split(b"\n")
        for line in lines:
            word, _, value = line.decode(errors="surrogateescape").partition(" ")
            if word == "worker":
                self._marked.add_session(int(value))
            elif word == "stopped":
                self._marked.forget_sessions()
            elif word == "remove":
                self._paths.append(value)
            elif word == "dismissed":
                self._dismissed = True
                return False
        return True

    def _look(self) -> None:
        """Pause the workers if the agent stands still, and its session may have ended."""
        if not self._stands_still():
            return
        since, looks = read(self._page)[BEAT], self._looks
        self._looks = since, looks[1] + 1 if looks[0] == since else 1
        self._marked.signal_sessions(signal.SIGSTOP)
        paused = self._marked.signal(signal.SIGSTOP)
        # the agent has gone on meanwhile: it pauses them itself, unless it has found them allowed to run
        if not self._stands_still() and read(self._page)[STATE] != PAUSED:
            for pid in paused:
                try:
                    os.kill(pid, signal.SIGCONT)
                except OSError:
                    continue

    def _pause_s(self) -> float:
        """Seconds until the agent may have stood still for too long, or the page has to be read again."""
        page = read(self._page)
        if page[BEAT] == self._looks[0] and self._looks[1] >= _QUICK_LOOKS:
            return _PAGE_S
        due = max(page[PAUSE_AT], page[BEAT] + page[STILL]) - now_ns()
        return max(_LEAST_S, min(due / 1e9, _PAGE_S)) if page[STATE] == RUNNING else _PAGE_S

    def _stands_still(self) -> bool:
        page, now = read(self._page), now_ns()
        return page[STATE] == RUNNING and now >= page[PAUSE_AT] and now - page[BEAT] >= page[STILL]

    def _kill(self) -> None:
        self._marked.signal_sessions(signal.SIGKILL)
        quiet, pause, deadline = 0, _LOOK_S, time.monotonic() + _PATIENCE_S
        while quiet < _QUIET_LOOKS and time.monotonic() < deadline:
            if self._marked.signal(signal.SIGKILL):
                quiet, pause = 0, min(2 * pause, _LONGEST_PAUSE_S)
            else:
                quiet, pause = quiet + 1, _LOOK_S
            time.sleep(pause)


def main() -> None:
    """Run the guardian: the entry point of its process."""
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)  # the agent gets them, too, and decides
    try:
        with open("/proc/self/comm", "w") as name:
            name.write("rdzv-guardian")
    except OSError:
        pass
    agent, mark, page = sys.argv[2:5]
    Guardian(int(agent), mark, int(page)).run()
