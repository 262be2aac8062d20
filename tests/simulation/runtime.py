"""The ``Runtime`` of a process of the simulated world."""

from __future__ import annotations

import functools
import random
import uuid

from rdzv_plugins.runtime import Runtime
from simulation.kernel import Kernel
from simulation.processes import OwnProcess
from simulation.threads import Threads


@functools.cache
def _known(kind: type, *own: str) -> tuple[str, ...]:
    """The names of a runtime that objects of this kind have, of their class or of their own."""
    return tuple(name for name in (*dir(kind), *own) if not name.startswith("__") and hasattr(Runtime, name))


class SimulatedRuntime(Runtime):
    """Of one process. Everything that is random comes from the scheduler's seed."""

    def __init__(self, kernel: Kernel, own: OwnProcess) -> None:
        scheduler = kernel.network.scheduler
        for each in (Threads(scheduler), own, kernel):
            vars(self).update((name, getattr(each, name)) for name in _known(type(each), *vars(each)))
        super().__init__()
        assert own.entry.process is not None
        self._host, self._scheduler = own.entry.process.host, scheduler
        self._clock = own.entry.process.clock
        self.monotonic = self._clock.read
        self.random = random.Random(scheduler.random.getrandbits(64))
        self.now = self.monotonic
        self.wall_is_off = 0.0
        """By how many seconds the wall clock of its host is wrong."""

    def now_ns(self) -> int:  # type: ignore[override]
        return int(self._clock.read() * 1e9)

    def wall(self) -> float:  # type: ignore[override]
        return 1_700_000_000.0 + self._scheduler.now + self.wall_is_off

    def gethostname(self) -> str:  # type: ignore[override]
        return self._host

    def machine_id(self) -> str:  # type: ignore[override]
        return self._host

    def pid_space(self) -> str:  # type: ignore[override]
        return self._host

    def uuid4(self) -> uuid.UUID:  # type: ignore[override]
        return uuid.UUID(int=self.random.getrandbits(128), version=4)
