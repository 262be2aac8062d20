"""What a run may take of a server is limited: the request beyond is refused by a sentence, and everybody goes on."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
from kits.wire.attack_kit import MIB, PROXY, Bystanders, ServerProcess
from kits.wire.coordination_kit import Losses, opened
from kits.wire.session_peers import at
from kits.wire.trunk_peer import FORWARD, attached, frame
from kits.wire.wire_client import PATIENCE, WAIT, Closed, Raw, add, get, i64, keyed, multi_set, set_

from rdzv_plugins.coordination import Event
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable, RdzvError
from rdzv_plugins.kvstore.coordination.sessions import NativeSession
from rdzv_plugins.kvstore.native.server import StoreLimits, StoreServer

pytestmark = pytest.mark.thorough


class Job:
    """A run with a node that watches and writes, which must not notice what others do."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._heard: list[Event] = []
        self._losses = Losses()
        self._rounds = 0

    def __enter__(self) -> Job:
        self._session = session_of(self._port, "job", self._losses)
        self._session.watch("k", self._heard.extend, timeout=PATIENCE)
        return self

    def advance(self) -> None:
        self._rounds += 1
        self._session.put({"k": b"%d" % self._rounds}, timeout=PATIENCE)
        held, _ = self._session.list("k", timeout=PATIENCE)
        assert [each.value for each in held] == [b"%d" % self._rounds]

    def __exit__(self, *_: object) -> None:
        self.advance()
        assert [each.value for each in self._heard] == [b"%d" % number for number in range(1, self._rounds + 1)]
        self._session.close()


def session_of(port: int, run: str, losses: Losses | None = None) -> NativeSession:
    session = opened(at(port, run), 600.0, losses)
    assert isinstance(session, NativeSession)
    return session


@contextmanager
def limited(**limits: int) -> Iterator[tuple[StoreServer, Job]]:
    with StoreServer("127.0.0.1", threads=2, limits=StoreLimits(**limits)) as server, Job(server.port) as job:
        yield server, job
        job.advance()


def test_bytes_of_a_run() -> None:
    with limited(run_bytes=2 * MIB) as (server, job), closing(session_of(server.port, "greedy")) as greedy:
        words = r"run full: there may be 2097152 bytes for the keys of this run \(run_bytes of the server\)"
        for number in range(20):
            greedy.put({f"big/{number}": bytes(100_000)}, timeout=PATIENCE)
        with pytest.raises(RdzvError, match=words):
            greedy.put({"big/20": bytes(100_000)}, timeout=PATIENCE)
        job.advance()
        assert greedy.delete(["big/0"], timeout=PATIENCE)
        greedy.put({"big/0": bytes(100_000)}, timeout=PATIENCE)
        assert server.stats()["refused"] == {"run full": 1}
        assert server.stats()["limits"]["run_bytes"] == 2 * MIB


def test_keys_of_a_run() -> None:
    with limited(run_keys=100) as (server, job), closing(session_of(server.port, "greedy")) as greedy:
        greedy.put({f"{number}": b"" for number in range(99)}, timeout=PATIENCE)
        with pytest.raises(RdzvError, match=r"run full: there may be 100 keys in this run \(run_keys of the server\)"):
            greedy.put({"100": b"", "101": b""}, timeout=PATIENCE)
        greedy.put({f"{number}": b"again" for number in range(100)}, timeout=PATIENCE)  # one of them is new
        job.advance()
        assert server.stats()["refused"] == {"run full": 1}


def test_bytes_of_all_runs() -> None:
    with limited(stored_bytes=4 * MIB) as (server, _), ExitStack() as held:
        sessions = [held.enter_context(closing(session_of(server.port, f"greedy-{each}"))) for each in range(5)]
        words = r"store full: there may be 4194304 bytes for the keys of all runs \(stored_bytes of the server\)"
        for session in sessions[:3]:
            session.put({"big": bytes(MIB)}, timeout=PATIENCE)
        with pytest.raises(RdzvError, match=words):
            sessions[3].put({"big": bytes(MIB)}, timeout=PATIENCE)
        sessions[0].close()  # a run that has gone gives back what it had
        sessions[4].put({"big": bytes(MIB - 10_000)}, timeout=PATIENCE)
        assert server.stats()["refused"] == {"store full": 1}


def test_what_one_session_is_sent_at_once() -> None:
    """Neither a list nor what a watch tells of may be longer than replies that are not read."""
    much = {f"key-{number}": bytes(10_000) for number in range(10)}
    lost: queue.Queue[ConnectionLost] = queue.Queue()
    with limited(output_bytes=64 * 1024) as (server, job), closing(session_of(server.port, "greedy")) as writer:
        with closing(at(server.port, "greedy").open_session(600, on_lost=lost.put, timeout=PATIENCE)) as watcher:
            watcher.watch("", lambda events: None, timeout=PATIENCE)
            writer.put(much, timeout=PATIENCE)
            assert "closed" in str(lost.get(timeout=PATIENCE))
        assert server.stats()["refused"] == {"unread replies": 1}
        with pytest.raises(ConnectionLost):
            writer.list("", timeout=PATIENCE)
        assert server.stats()["refused"] == {"unread replies": 2}
        job.advance()


def test_what_a_trunk_has_not_said_to_have_is_limited() -> None:
    with (
        StoreServer("127.0.0.1", threads=1, limits=StoreLimits(output_bytes=64 * 1024)) as server,
        closing(Raw(server.port)) as worker,
        closing(attached(server.port, 77)) as trunk,
    ):
        worker.send(set_(b"/key", bytes(10_000)))
        assert worker.fence() == b""
        for number in range(10):
            trunk.send(frame(5 + number, FORWARD, get(b"/key")))
        trunk.until_close()
        assert server.stats()["refused"] == {"unread replies": 1}
        assert worker.fence() == b""


def test_sessions_of_a_run_and_in_all() -> None:
    with limited(run_sessions=3, sessions=6) as (server, job), ExitStack() as held:
        for _ in range(3):
            held.enter_context(closing(session_of(server.port, "greedy")))
        words = "opens no session: too many sessions: there may be {} {} of the server"
        with pytest.raises(EndpointUnreachable, match=words.format(3, r"of this run \(run_sessions")) as refused:
            session_of(server.port, "greedy")
        assert "an option (--rdzv-conf) of who serves" in refused.value.remedy
        job.advance()
        for number in range(2):
            held.enter_context(closing(session_of(server.port, f"other-{number}")))
        with pytest.raises(EndpointUnreachable, match=words.format(6, r"in all \(sessions")):
            session_of(server.port, "one more")
        assert server.stats()["refused"] == {"too many sessions": 2}
        assert len(server.stats()["runs"]) == 4, "none that nobody is in"


def test_watches_of_a_session_and_of_a_run() -> None:
    with limited(watches=3, run_watches=5) as (server, job), ExitStack() as held:
        first, second = (held.enter_context(closing(session_of(server.port, "greedy"))) for _ in range(2))

        def watch(session: NativeSession) -> None:
            session.watch("k", lambda events: None, timeout=PATIENCE)

        for _ in range(3):
            watch(first)
        with pytest.raises(RdzvError, match=r"too many watches: there may be 3 of one session \(watches of"):
            watch(first)
        for _ in range(2):
            watch(second)
        with pytest.raises(RdzvError, match=r"too many watches: there may be 5 of this run \(run_watches of"):
            watch(second)
        first.put({"k": b"goes on"}, timeout=PATIENCE)
        job.advance()
        assert server.stats()["refused"] == {"too many watches": 2}


def fill(client: Raw) -> None:
    for number in range(1000):
        client.send(multi_set([(b"/%d/%d" % (number, each), b"") for each in range(50)]))
        client.fence()


@pytest.mark.parametrize("threads", [1, 4, PROXY], ids=["1 thread", "4 threads", "proxy"])
def test_keys_of_a_keyspace(threads: int) -> None:
    """By writes and by waits, which need to know a key as well. Told in steps, so the number is about that."""
    most = 4000
    with ExitStack() as stack:
        limits = {"stored_keys": most}
        root = stack.enter_context(ServerProcess(threads=threads or 1, **limits))
        server = stack.enter_context(ServerProcess(threads=PROXY, root=root.port)) if threads == PROXY else root
        bystanders = stack.enter_context(Bystanders(server.port))
        with Raw(server.port) as greedy, pytest.raises(Closed):
            fill(greedy)
        assert most - 1500 < root.stats()["keyspaces"][0]["keys"] < most + 1500
        fresh = [b"/fresh/%d" % each for each in range(2000)]
        for request in (multi_set([(key, b"") for key in fresh]), keyed(WAIT, fresh)):
            bystanders.advance(3)
            with Raw(server.port) as greedy:
                greedy.send(request)
                greedy.until_close()
        with Raw(server.port) as other:  # what is there may be waited for
            assert other.ask(keyed(WAIT, [b"/0/%d" % each for each in range(50)]), 1) == b"\0"
        server.expect_refused("too many stored keys", 3)


def test_a_count_goes_on_in_a_full_keyspace() -> None:
    with (
        StoreServer("127.0.0.1", threads=1, limits=StoreLimits(stored_keys=3000)) as server,
        Raw(server.port) as client,
    ):
        assert client.ask(add(b"/count", 1), 8) == i64(1)
        with Raw(server.port) as greedy:
            greedy.send(multi_set([(b"/%d" % each, b"") for each in range(2900)]))
            greedy.send(multi_set([(b"/more/%d" % each, b"") for each in range(2900)]))
            assert greedy.until_close() == b""
        assert client.ask(add(b"/count", 1), 8) == i64(2)
        assert server.stats()["keyspaces"][0]["keys"] == 2901
        assert server.stats()["refused"] == {"too many stored keys": 1}
