"""Random histories of requests get equal answers from the simulated service, the native server and a real etcd.

Revisions differ, as etcd counts transactions: a history says of which earlier answer a guard or a watch is. One
difference is known: the native server forgets a run with its last session (native/PROTOCOL.md) and counts from 1 again,
while of etcd the next run's first session deletes what is left; who watches since an older revision is told of that. In
every other history a session stays, and all give the same answers.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from kits.etcd import etcd_kit

from rdzv_plugins.backends.etcd.coordination import EtcdCoordination
from rdzv_plugins.coordination import CoordinationBackend, Event, KeyValue, Session
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.kvstore.native.server import StoreServer
from simulation.machines import Machines
from simulation.scheduler import Process
from simulation.service import Service
from simulation.sessions import Coordination
from simulation.sessions import Session as Simulated
from simulation.threads import Threads

KEYS = ("a/1", "a/2", "a/3", "b/1", "b/2")
PREFIXES = ("", "a/", "b/", "a/2", "c/")
SESSIONS = 3
LENGTH = 30
TTL = T = 60.0
MARKS = ("a/2~", "a/~", "b/~", "c/~")
"""The keys that are written last, under all prefixes: a watch that has told of them has told everything."""

Command = tuple[str, int, tuple[Any, ...]]
"""What is asked, of which session, and with what."""
Answers = list[Any]
Wait = Callable[[Callable[[], bool]], object]
"""Waits until that is so."""


class World(Machines):
    """A service, and processes that use it."""

    def __init__(self, seed: int = 1, *, by_connection: bool = True) -> None:
        super().__init__(seed)
        self.threads = Threads(self.scheduler)
        self.service = Service(self.network, by_connection=by_connection)

    def open(self) -> Simulated:
        return Coordination(self.service, self.threads).open_session(TTL, on_lost=lambda _: None, timeout=T)

    def run(self, does: Callable[[], object], process: Process | None = None) -> None:
        """Until a thread of that process has done it."""
        thread = self.scheduler.spawn(process or self.scheduler.process("client"), "main", does)
        self.scheduler.run(lambda: thread.done or bool(self.scheduler.failed), 3600.0)
        for _, error in self.scheduler.failed:
            raise error


def history_of(seed: int) -> list[Command]:
    chance = random.Random(seed)

    def guard() -> int | None:
        return chance.choice([None, None, chance.randrange(1000)])

    def command() -> Command:
        name = chance.choice(["create", "create", "put", "put", "put", "delete", "list", "watch", "cancel", "close"])
        keys = tuple(sorted(chance.sample(KEYS, chance.choice([1, 1, 1, 2, 3]))))
        value, ephemeral = chance.randbytes(2), chance.random() < 0.4
        arguments: dict[str, tuple[Any, ...]] = {
            "create": (keys[0], value, ephemeral),
            "put": (keys, value, ephemeral, guard()),
            "delete": (keys, guard()),
            "list": (chance.choice(PREFIXES),),
            "watch": (chance.choice(PREFIXES), chance.choice(["all", "newest", "older"]), chance.randrange(1000)),
            "cancel": (chance.randrange(1000),),
            "close": (),
        }
        return name, chance.randrange(SESSIONS), arguments[name]

    return [command() for _ in range(LENGTH)]


class Watched:
    """A watch, and what it has told."""

    def __init__(self, session: int, prefix: str, since: str) -> None:
        self.session, self.prefix, self.whole = session, prefix, since != "older"
        self.told: list[Event] = []
        self.watch: Any = None

    def has_told_all(self) -> bool:
        return {mark for mark in MARKS if mark.startswith(self.prefix)} <= {each.key for each in self.told}

    def answer(self) -> Any:
        """Changes from before the watch may be left out where a later one of the key is told."""
        revisions = [each.revision for each in self.told]
        assert revisions == sorted(revisions)
        if not self.whole:
            return sorted({each.key: each.value for each in self.told}.items())
        # the keys of a session end in any order, at one time
        told, gone = list[tuple[str, bytes | None]](), list[str]()
        for each in [*self.told, Event("", b"", 0)]:
            if each.value is None:
                gone.append(each.key)
                continue
            told += [(key, None) for key in sorted(gone)] + [(each.key, each.value)]
            gone = []
        return told


class Player:
    """Asks what a history says, of one service."""

    def __init__(self, service: CoordinationBackend, wait: Wait, *, stays: bool) -> None:
        self._service, self._wait = service, wait
        self._writes = 0
        self._written: dict[str, int] = {}  # by which of the writes each key was written last
        self._staying = [self._open("stays")] if stays else []
        self._sessions = [self._open(str(number)) for number in range(SESSIONS)]
        self._closed = [False] * SESSIONS
        self._known: list[KeyValue] = []
        self._listed: list[int] = []
        self._watches: list[Watched] = []
        self._cancelled: list[Watched] = []

    def _open(self, name: str) -> Session:
        """With a key that goes with it."""
        session = self._service.open_session(TTL, on_lost=lambda _: None, timeout=T)
        session.put({f"s/{name}": b""}, ephemeral=True, timeout=T)
        self._wrote(f"s/{name}")
        return session

    def _is_gone(self, name: str) -> bool:
        """That session has ended; the native server learns of it by its connection. Without any session all is gone."""
        others = [one for one, closed in zip(self._sessions, self._closed, strict=True) if not closed]
        if others or self._staying:
            return f"s/{name}" not in [each.key for each in (others + self._staying)[0].list("s/", timeout=T)[0]]
        one = self._service.open_session(TTL, on_lost=lambda _: None, timeout=T)
        held, _ = one.list("", timeout=T)
        one.close()
        return not held

    def play(self, history: Sequence[Command]) -> Answers:
        answers: Answers = []
        for name, session, arguments in history:
            try:
                answers.append(getattr(self, f"_{name}")(session, *arguments))
            except ConnectionLost:
                answers.append("lost")
        last = self._open("last")
        assert last.put(dict.fromkeys(MARKS, b""), timeout=T)
        self._wrote(*MARKS)
        living = [each for each in self._watches if not self._closed[each.session]]
        self._wait(lambda: all(each.has_told_all() for each in living))
        answers.append([each.answer() for each in living])
        answers.append(self._held(last.list("", timeout=T)[0]))
        for one in (last, *self._sessions, *self._staying):
            one.close()
        return answers

    def _guard(self, number: int | None) -> KeyValue | None:
        return None if number is None or not self._known else self._known[-1 - number % len(self._known)]

    def _create(self, session: int, key: str, value: bytes, ephemeral: bool) -> Any:
        done, found = self._sessions[session].create(key, value, ephemeral=ephemeral, timeout=T)
        self._known.append(found)
        if done:
            self._wrote(key)
        return done, found.key, found.value

    def _put(self, session: int, keys: Sequence[str], value: bytes, ephemeral: bool, guard: int | None) -> Any:
        items = {key: value + key.encode() for key in keys}
        put = self._sessions[session].put
        done = put(items, ephemeral=ephemeral, guard=self._guard(guard), timeout=T) is not None
        if done:
            self._wrote(*keys)
        return done

    def _delete(self, session: int, keys: Sequence[str], guard: int | None) -> Any:
        return self._sessions[session].delete(keys, guard=self._guard(guard), timeout=T)

    def _list(self, session: int, prefix: str) -> Any:
        found, revision = self._sessions[session].list(prefix, timeout=T)
        self._known += found
        self._listed.append(revision)
        assert all(each.revision <= revision for each in found)
        return self._held(found)

    def _held(self, found: Sequence[KeyValue]) -> Any:
        """In order; keys of one write in any order, as those of a transaction of etcd have one revision."""
        order = [self._written[each.key] for each in found]
        assert order == sorted(order)
        return sorted((self._written[each.key], each.key, each.value) for each in found)

    def _wrote(self, *keys: str) -> None:
        self._writes += 1
        self._written.update(dict.fromkeys(keys, self._writes))

    def _watch(self, session: int, prefix: str, since: str, number: int) -> Any:
        after = 0
        if since == "newest":
            after = self._sessions[session].list(prefix, timeout=T)[1]
        elif since == "older" and self._listed:
            after = self._listed[number % len(self._listed)]
        watched = Watched(session, prefix, since)
        watched.watch = self._sessions[session].watch(prefix, watched.told.extend, after=after, timeout=T)
        self._watches.append(watched)
        return "watched"

    def _cancel(self, session: int, number: int) -> Any:
        mine = [each for each in self._watches if each.session == session and not self._closed[session]]
        if mine:
            cancelled = mine[number % len(mine)]
            cancelled.watch.cancel()
            self._watches.remove(cancelled)
        return len(mine)

    def _close(self, session: int) -> Any:
        """Every other time another one is opened in its place."""
        if self._closed[session]:
            self._watches = [each for each in self._watches if each.session != session]
            self._sessions[session], self._closed[session] = self._open(str(session)), False
        else:
            self._sessions[session].close()
            self._closed[session] = True
            self._wait(lambda: self._is_gone(str(session)))


def really(service: CoordinationBackend, history: Sequence[Command], *, stays: bool) -> Answers:
    pause = threading.Event()

    def wait(done: Callable[[], bool]) -> None:
        for _ in range(int(T / 0.01)):
            if done():
                return
            pause.wait(0.01)
        raise AssertionError("it does not come")

    try:
        return Player(service, wait, stays=stays).play(history)
    finally:
        service.close()


def simulated(seed: int, history: Sequence[Command], *, by_connection: bool, stays: bool) -> Answers:
    world, answers = World(seed, by_connection=by_connection), list[Answers]()

    def wait(done: Callable[[], bool]) -> None:
        for _ in range(100):
            if done():
                return
            world.threads.sleep(1.0)
        raise AssertionError("it does not come")

    service = Coordination(world.service, world.threads)
    world.run(lambda: answers.append(Player(service, wait, stays=stays).play(history)))
    world.scheduler.close()
    return answers[0]


@pytest.fixture(scope="module")
def native() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=1) as server:
        yield server


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with etcd_kit.etcd(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster.endpoints[0]


@pytest.mark.parametrize(
    "seeds",
    [range(5), *(pytest.param(range(first, first + 13), marks=pytest.mark.thorough) for first in range(5, 200, 13))],
    ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}",
)
def test_histories_are_answered_alike(seeds: Sequence[int], native: StoreServer, etcd: Endpoint) -> None:
    for seed in seeds:
        history, run, stays = history_of(seed), f"run-{seed}", seed % 2 == 0
        of_connections = simulated(seed, history, by_connection=True, stays=stays)
        of_leases = simulated(seed, history, by_connection=False, stays=stays)
        assert not stays or of_connections == of_leases, f"seed {seed}: simulated"
        served = NativeCoordination(Endpoint("127.0.0.1", native.port), run, name="parallel", who="it")
        assert really(served, history, stays=stays) == of_connections, f"seed {seed}: native"
        assert really(EtcdCoordination([etcd], run), history, stays=stays) == of_leases, f"seed {seed}: etcd"


def test_over_another_connection_a_watch_misses_nothing_that_is_compacted_and_requests_are_asked_again() -> None:
    world, told, written = World(by_connection=False), list[Event](), list[int | None]()
    mine, other, session = world.scheduler.process("mine"), world.scheduler.process("other"), list[Simulated]()

    def begin() -> None:
        session.append(world.open())
        session[0].put({"x/stays": b"1", "x/goes": b"1"}, timeout=T)
        session[0].watch("x/", told.extend, timeout=T)
        world.threads.sleep(1.0)

    def change() -> None:
        service, another = world.service, world.open()
        (end,) = [each for each in world.network.ends if each.process is mine and each.peer.port == 2379]
        end.hear_of_the_end("reset")
        world.scheduler.spawn(mine, "asks", lambda: written.append(session[0].put({"y": b""}, timeout=T)))
        another.put({"x/stays": b"2"}, timeout=T)
        another.delete(["x/goes"], timeout=T)
        service.store.compact()
        world.threads.sleep(TTL)

    world.run(begin, mine)
    world.run(change, other)
    assert [(each.key, each.value) for each in told[2:]] == [("x/stays", b"2"), ("x/goes", None)]
    assert len(written) == 1
    assert written[0] is not None
