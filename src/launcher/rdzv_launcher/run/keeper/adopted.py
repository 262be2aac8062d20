"""What the agent adopts when its keeper has gone: told from the children that the agent has started itself."""

from __future__ import annotations

import os
import signal
import time

from rdzv_launcher.run.keeper import descendants

_AGAIN_S = 0.01


class Adopted:
    """Below a keeper that lives nothing can become the agent's child: those that there are meanwhile are its own."""

    def __init__(self, keeper: int) -> None:
        self._keeper = keeper
        self._own: set[tuple[int, str]] = set()
        self.look()

    def look(self) -> None:
        """Remember the agent's own children, if the keeper lives."""
        found = descendants.children(os.getpid())
        try:
            if os.waitid(os.P_PID, self._keeper, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return  # what it has left may be among them
        except ChildProcessError:
            return
        self._own = {(each.pid, each.started) for each in found}

    def kill(self, deadline: float) -> list[int]:
        """End what a keeper has left that is no more; returns the pids of what does not end.

        That is never in the agent's session. Nor is a child of the agent that has a session of its own: one that was
        started since the last ``look`` is ended with the rest.
        """
        me, session = os.getpid(), os.getsid(0)
        quiet = 0
        while True:
            adopted = [
                each
                for each in descendants.children(me)
                if each.session != session and (each.pid, each.started) not in self._own
            ]
            left = [each.pid for each in adopted if descendants.send(each, signal.SIGKILL)]
            left += descendants.kill([each.pid for each in adopted])
            for each in adopted:
                wait_for(each.pid, time.monotonic() + _AGAIN_S)
            quiet = 0 if left or adopted else quiet + 1
            if quiet > 1 or time.monotonic() > deadline:
                return left


def wait_for(pid: int, deadline: float) -> tuple[int] | None:
    """The status of a child, None if it does not end in time or is nobody's child here."""
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
