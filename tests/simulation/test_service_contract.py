"""What the conformance suite asks of every coordination service, asked of the simulated one, in simulated time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rdzv_plugins.coordination import CoordinationBackend, Session
from rdzv_plugins.testing import coordination, parts
from rdzv_plugins.testing.coordination import CoordinationKeys, CoordinationSessions, CoordinationWatches
from rdzv_plugins.testing.job import JobTheme
from simulation.sessions import Coordination
from simulation.test_service import World

NOT_HERE = {
    "test_ending_a_watch_drops_the_calls_behind_the_one_that_runs": "it asks a real process",
    "test_runs_are_kept_apart": "a simulated service has one run",
    "test_the_keys_of_a_killed_process_go": "it kills a real process; test_service.py kills a simulated one",
    "test_the_keys_of_a_stopped_process_go_after_its_time_to_live": "the same, with a process that stands still",
    "test_a_session_can_be_ended_by_others": "it stops a real process; the histories have none either",
    "test_a_session_stays_while_nothing_is_asked": "it stops a real process",
    "test_what_a_session_says_of_itself": "it asks whether an address is this machine's",
}
THEMES: tuple[type[JobTheme], ...] = (CoordinationKeys, CoordinationWatches, CoordinationSessions)
PROMISES = [(theme, name) for theme in THEMES for name in vars(theme) if name.startswith("test_")]


class Barrier:
    """``threading.Barrier``, as far as the suite uses it: simulated threads begin one after the other anyway."""

    def __init__(self, parties: int) -> None: ...

    def wait(self, timeout: float) -> None: ...


class Job:
    """A ``ContractJob`` of simulated processes."""

    ttl, harness = 3.0, SimpleNamespace(kind="coordination")

    def __init__(self, world: World) -> None:
        self._world = world

    def created(self) -> CoordinationBackend:
        return Coordination(self._world.service, self._world.threads)

    def session(self, ttl: float = parts.LONG, losses: Any = None) -> Session:
        return parts.opened(self.created(), ttl, losses)


@pytest.mark.parametrize("by_connection", [True, False], ids=["connections", "leases"])
@pytest.mark.parametrize(
    ("theme", "name"),
    [each for each in PROMISES if each[1] not in NOT_HERE],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_it_is_kept(theme: type[JobTheme], name: str, by_connection: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(by_connection=by_connection)
    simulated: Any = SimpleNamespace(**vars(world.threads), Barrier=Barrier)
    simulated.monotonic, simulated.Queue = world.threads.monotonic, world.threads.SimpleQueue
    for module in (parts, coordination):
        for used in ("threading", "time"):
            monkeypatch.setattr(module, used, simulated, raising=False)
    monkeypatch.setattr(coordination, "now", world.threads.monotonic)
    monkeypatch.setattr(JobTheme, "gap", lambda _, why: pytest.skip(why))
    job: Any = Job(world)
    try:
        world.run(lambda: getattr(theme(), name)(job))
    finally:
        world.scheduler.close()


def test_what_is_left_out_exists() -> None:
    assert NOT_HERE.keys() <= {name for _, name in PROMISES}
