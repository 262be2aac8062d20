"""What the agent adopts when its keeper is gone, as distinct from the children that the agent has started itself."""

from __future__ import annotations

import os
import signal
import time

from rdzv_launcher.run.keeper import descendants

_AGAIN_S = 0.01


class Adopted:
    """While a keeper lives, nothing below it can become the agent's child: all children seen then are the agent's."""

    def __init__(self, keeper: int) -> None:
        self._keeper = keeper
        self._own: set[tuple[int, str]] = set()
        self.look()

    def look(self) -> None:
        """Remember the agent's own children, if the keeper lives."""
        found = descendants.children(os.getpid())
        try:
            if os.waitid(os.P_PID, self._keeper, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return  # what the keeper left may be among them
        except ChildProcessError:
            return
        self._own = {(each.pid, each.started) for each in found}

    def kill(self, deadline: float) -> list[int]:
        """End what a keeper left behind when it ended; returns the pids of processes that do not end.

        Processes in the agent's session are never touched, because what a keeper leaves is never there. Nor are the
        agent's own children in sessions of their own, unless they were started since the last ``look``: those are ended
        with the rest.
        """
        quiet = 0
        while True:
            left, adopted = self.signal(signal.SIGKILL), self._adopted()
            for each in adopted:
                wait_for(each.pid, time.monotonic() + _AGAIN_S)
            quiet = 0 if left or adopted else quiet + 1
            if quiet > 1 or time.monotonic() > deadline:
                return left

    def signal(self, number: int) -> list[int]:
        """Send a signal to what a keeper left behind when it ended, and return the pids of what lives; 0 only asks."""
        adopted = self._adopted()
        found = [each for each in adopted if each.lives] + descendants.descendants([each.pid for each in adopted])
        return [each.pid for each in found if number == 0 or descendants.send(each, number)]

    def _adopted(self) -> list[descendants.Process]:
        session = os.getsid(0)
        return [
            each
            for each in descendants.children(os.getpid())
            if each.session != session and (each.pid, each.started) not in self._own
        ]


def wait_for(pid: int, deadline: float) -> tuple[int] | None:
    """The status of a child; None if it does not end in time, or is not a child of this process."""
    while True:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if found:
            return (status,)
        if time.monotonic() > deadline:
            return None
        time.sleep(_AGAIN_S)
