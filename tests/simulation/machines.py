"""The hosts and processes of a simulated world, and the passing of its time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulation.kernel import Kernel
from simulation.network import Network
from simulation.processes import Entry, OwnProcess, Processes
from simulation.runtime import SimulatedRuntime
from simulation.scheduler import Process, Scheduler

LIMIT_S = 2000.0


class Machines:
    """All of them. What happens on them comes from the seed."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.network = Network(self.scheduler)
        self.kernel, self.processes = Kernel(self.network), Processes(self.network)

    def boot(self, name: str, host: str = "") -> tuple[Process, Entry, SimulatedRuntime]:
        """A process, as its scheduler, its kernel and itself know it; on a host of its own if none is given."""
        process = self.scheduler.process(name, host)
        entry = self.processes.add(command=name, thread_of=process)
        return process, entry, SimulatedRuntime(self.kernel, OwnProcess(self.processes, entry))

    def until(self, happens: Callable[[], Any], limit: float = LIMIT_S) -> None:
        """Let the world go on until that is so. Raises ``Stuck``."""
        self.scheduler.run(happens, limit)

    def after(self, seconds: float) -> None:
        """Let the world go on for some time."""
        due, passed = self.scheduler.now + seconds, list[bool]()
        self.scheduler.at(due, lambda: passed.append(True))
        self.scheduler.run(lambda: bool(passed), seconds + 1.0)
