"""The simulated coordination service keeps the contract, in good and in bad times."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rdzv_plugins.coordination import Event
from rdzv_plugins.errors import ConnectionLost
from simulation.machines import Machines
from simulation.scheduler import Process
from simulation.service import Service
from simulation.sessions import Coordination, Session
from simulation.threads import Threads

TTL = 10.0


class World(Machines):
    """A service, and processes that use it."""

    def __init__(self, seed: int = 1, *, by_connection: bool = True) -> None:
        super().__init__(seed)
        self.threads = Threads(self.scheduler)
        self.service = Service(self.network, by_connection=by_connection)
        self.lost: list[str] = []

    def process(self, name: str) -> Process:
        return self.scheduler.process(name)

    def open(self, ttl: float = TTL) -> Session:
        backend = Coordination(self.service, self.threads)
        return backend.open_session(ttl, on_lost=lambda error: self.lost.append(str(error)), timeout=30.0)

    def run(self, does: Callable[[], object], process: Process | None = None) -> None:
        """Until a thread of that process has done it."""
        thread = self.scheduler.spawn(process or self.process("client"), "main", does)
        self.scheduler.run(lambda: thread.done or bool(self.scheduler.failed), 3600.0)
        for _, error in self.scheduler.failed:
            raise error


@pytest.fixture(params=[True, False], ids=["connections", "leases"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(by_connection=request.param)
    yield world
    world.scheduler.close()


def test_over_another_connection_a_watch_misses_nothing_that_is_compacted_and_requests_are_asked_again() -> None:
    world, told, written = World(by_connection=False), list[Event](), list[int | None]()
    mine, other, session = world.process("mine"), world.process("other"), list[Session]()

    def begin() -> None:
        session.append(world.open())
        session[0].put({"x/stays": b"1", "x/goes": b"1"}, timeout=5)
        session[0].watch("x/", told.extend, timeout=5)
        world.threads.sleep(1.0)

    def change() -> None:
        service, another = world.service, world.open()
        (end,) = [each for each in world.network.ends if each.process is mine and each.peer.port == 2379]
        end.hear_of_the_end("reset")
        world.scheduler.spawn(mine, "asks", lambda: written.append(session[0].put({"y": b""}, timeout=TTL)))
        another.put({"x/stays": b"2"}, timeout=5)
        another.delete(["x/goes"], timeout=5)
        service.store.compact()
        world.threads.sleep(TTL)

    world.run(begin, mine)
    world.run(change, other)
    assert [(each.key, each.value) for each in told[2:]] == [("x/stays", b"2"), ("x/goes", None)]
    assert len(written) == 1
    assert written[0] is not None


@pytest.mark.parametrize("fault", ["killed", "crashed", "frozen", "closed"])
def test_ephemeral_keys_go_with_their_session(world: World, fault: str) -> None:
    mine = world.process("mine")
    session = list[Session]()
    world.run(lambda: session.append(world.open()), mine)
    world.run(lambda: session[0].put({"here": b""}, ephemeral=True, timeout=5), mine)
    told, other = world.threads.Event(), world.process("other")
    world.run(
        lambda: world.open().watch("here", lambda events: events[-1].value is None and told.set(), timeout=5), other
    )
    began = world.scheduler.now
    if fault == "killed":
        world.network.kill(mine)
    elif fault == "crashed":
        world.network.crash(mine.host)
    elif fault == "frozen":
        world.scheduler.freeze(mine)
    else:
        world.run(session[0].close, mine)
    world.run(lambda: told.wait(10 * TTL), other)
    assert told.is_set()
    took = world.scheduler.now - began
    at_once = fault == "closed" or (fault == "killed" and world.service.by_connection)
    assert took < 1.0 if at_once else 0.5 * TTL < took < 1.4 * TTL


def test_a_frozen_client_learns_that_its_session_has_ended(world: World) -> None:
    mine, session = world.process("mine"), list[Session]()
    world.run(lambda: session.append(world.open()), mine)
    world.scheduler.freeze(mine)
    world.run(lambda: world.threads.sleep(2 * TTL))
    world.scheduler.thaw(mine)
    world.run(lambda: world.threads.sleep(1.0), mine)
    assert len(world.lost) == 1

    def asks() -> None:
        with pytest.raises(ConnectionLost):
            session[0].put({"a": b""}, timeout=5)

    world.run(asks, mine)


def test_a_session_lives_through_a_short_outage(world: World) -> None:
    def does() -> None:
        session = world.open()
        session.put({"a": b""}, ephemeral=True, timeout=5)
        world.network.cut("client", "service")
        with pytest.raises(TimeoutError):
            session.put({"a": b"2"}, timeout=1)
        world.threads.sleep(0.5 * TTL)
        world.network.heal("client", "service")
        world.threads.sleep(1.0)
        held, _ = session.list("", timeout=5)
        assert [kv.value for kv in held] == [b"2"]  # what timed out was done later

    world.run(does)
    assert world.lost == []
