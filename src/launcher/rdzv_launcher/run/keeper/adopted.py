"""What the agent adopts when its keeper is gone, as distinct from the children that the agent has started itself."""

from __future__ import annotations

import os

from rdzv_launcher.run.keeper.descendants import Process, Processes
from rdzv_plugins.runtime import Runtime, Signals

_AGAIN_S = 0.01


class Adopted:
    """While a keeper lives, nothing below it can become the agent's child: all children seen then are the agent's."""

    def __init__(self, keeper: int, runtime: Runtime, processes: Processes) -> None:
        self._keeper, self._runtime, self._processes = keeper, runtime, processes
        self._own: set[tuple[int, str]] = set()
        self.look()

    def look(self) -> None:
        """Remember the agent's own children, if the keeper lives."""
        found = self._processes.children(self._runtime.getpid())
        try:
            if self._runtime.waitid(os.P_PID, self._keeper, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
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
            left, adopted = self.signal(Signals.SIGKILL), self._adopted()
            for each in adopted:
                wait_for(each.pid, self._runtime.monotonic() + _AGAIN_S, self._runtime)
            quiet = 0 if left or adopted else quiet + 1
            if quiet > 1 or self._runtime.monotonic() > deadline:
                return left

    def signal(self, number: int) -> list[int]:
        """Send a signal to what a keeper left behind when it ended, and return the pids of what lives; 0 only asks."""
        adopted = self._adopted()
        found = [each for each in adopted if each.lives] + self._processes.descendants([each.pid for each in adopted])
        return [each.pid for each in found if number == 0 or self._processes.send(each, number)]

    def _adopted(self) -> list[Process]:
        session = self._runtime.getsid(0)
        return [
            each
            for each in self._processes.children(self._runtime.getpid())
            if each.session != session and (each.pid, each.started) not in self._own
        ]


def wait_for(pid: int, deadline: float, runtime: Runtime) -> tuple[int] | None:
    """The status of a child; None if it does not end in time, or is not a child of this process."""
    while True:
        try:
            found, status = runtime.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if found:
            return (status,)
        if runtime.monotonic() > deadline:
            return None
        runtime.sleep(_AGAIN_S)
