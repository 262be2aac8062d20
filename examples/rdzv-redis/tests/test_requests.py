"""Requests whose answers are lost, and what a session asks while nobody asks it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from kit import Losses, Recorder, T, backend_at, client, client_at, connected, opened, wait_until
from rdzv_plugins.errors import Compacted, ConnectionLost, EndpointUnreachable

from rdzv_redis.conformance import RedisHarness


class Cutter:
    """A relay that swallows the answer to a request which contains some bytes, and hangs up; or not, if ``deaf``."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self.wanted: list[bytes] = []
        self.cut = 0
        self.deaf = False
        self._lock = threading.Lock()
        self._start(self._accept)

    def _start(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with ExitStack() as kept:
            while True:
                try:
                    caller, _ = self._listener.accept()
                except OSError:
                    return
                try:
                    called = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    caller.close()
                    continue
                self._open += [kept.enter_context(caller), kept.enter_context(called)]
                swallow = threading.Event()
                self._start(self._pass_on, caller, called, swallow, True)
                self._start(self._pass_on, called, caller, swallow, False)

    def _pass_on(self, source: socket.socket, target: socket.socket, swallow: threading.Event, asks: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    found = [each for each in self.wanted if each in data] if asks else []
                    if found:
                        self.wanted.remove(found[0])
                        swallow.set()
                if not asks and swallow.is_set():  # it was done
                    with self._lock:
                        self.cut += 1
                    if self.deaf:
                        continue
                    break
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(T)
        self._listener.close()
        for each in self._open:
            each.close()
        for thread in self._threads:
            thread.join(T)


@contextmanager
def cutter(port: int) -> Iterator[Cutter]:
    relay = Cutter(port)
    try:
        yield relay
    finally:
        relay.close()


@pytest.fixture
def port(harness: RedisHarness) -> int:
    assert harness._server is not None
    return harness._server.port


def test_a_request_whose_answer_was_lost_is_done_once_and_answered_as_the_first_time(port: int) -> None:
    losses, recorder = Losses(), Recorder()
    with cutter(port) as relay, backend_at(relay.port) as backend, backend_at(port) as other:
        session, watcher = opened(backend, losses=losses), opened(other)
        watcher.watch("", recorder, timeout=T)
        relay.wanted += [b"first", b"second", b"third", b"fourth"]
        done, key = session.create("k", b"first", timeout=T)
        assert done, "the second time it would find its own"
        revision = session.put({"k": b"second", "l": b""}, guard=key, timeout=T)
        assert revision is not None, "the second time its guard would have changed"
        assert session.delete(["l", "fourth"], guard=type(key)("k", b"second", revision - 1), timeout=T)
        assert session.put({"third": b"third"}, timeout=T) == revision + 2
        assert relay.cut >= 4
        assert recorder.take(5) == [("k", b"first"), ("k", b"second"), ("l", b""), ("l", None), ("third", b"third")]
        watcher.put({"fence": b""}, timeout=T)
        assert recorder.take(6)[5:] == [("fence", b"")]
        assert losses.none


def test_a_request_that_comes_late_behind_a_later_one_does_nothing(port: int) -> None:
    async def ask() -> None:
        session = await connected(client_at(port))
        await session.put(1, {"k": b"1"}, ephemeral=False, guard=None)
        revision = await session.put(2, {"k": b"2"}, ephemeral=False, guard=None)
        with pytest.raises(EndpointUnreachable, match="two sessions of the same name"):
            await session.put(1, {"k": b"late"}, ephemeral=False, guard=None)
        again = await session.put(2, {"k": b"late"}, ephemeral=False, guard=None)
        assert again == revision, "the answer that was given to it"
        assert [each.value for each in (await session.list(""))[0]] == [b"2"]
        await session.end()
        await session.disconnect()

    asyncio.run(ask())


def test_a_watch_whose_connection_breaks_misses_nothing(port: int) -> None:
    recorder = Recorder()
    with cutter(port) as relay, backend_at(relay.port) as backend, backend_at(port) as other:
        session, writer = opened(backend), opened(other)
        session.watch("n/", recorder, timeout=T)
        relay.wanted += [b"XREAD"] * 3
        for number in range(20):
            writer.put({f"n/{number}": b""}, timeout=T)
        assert recorder.take(20) == [(f"n/{number}", b"") for number in range(20)]


def test_a_watch_whose_connection_is_dead_without_a_sign_of_it_gets_another(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rdzv_redis.client._LATE_S", 0.2)
    recorder = Recorder()
    with cutter(port) as relay, backend_at(relay.port) as backend, backend_at(port) as other:
        relay.deaf = True
        relay.wanted += [b"XREAD"]
        session, writer = opened(backend, ttl=3), opened(other)
        session.watch("k", recorder, timeout=T)
        wait_until(lambda: not relay.wanted)
        writer.put({"k": b""}, timeout=T)
        assert recorder.take(1) == [("k", b"")]


def test_a_watch_of_what_is_forgotten_says_so_and_the_stream_does_not_grow(port: int) -> None:
    with backend_at(port) as backend:
        session = opened(backend)
        many = {f"k/{number}": b"" for number in range(5300)}
        session.put(many, timeout=T)
        session.delete(many, timeout=T)
        with pytest.raises(Compacted, match="watching 'k/'") as caught:
            session.watch("k/", Recorder(), after=1, timeout=T)
        assert caught.value.remedy
        _, revision = session.list("k/", timeout=T)
        recorder = Recorder()
        session.watch("k/", recorder, after=revision - 1, timeout=T)
        session.watch("k/", recorder, after=revision, timeout=T)
        assert recorder.take(1) == [("k/5299", None)]
        with client(port) as redis:
            assert redis.xlen("rdzv-plugins/run/events") <= 10_200


def test_who_falls_behind_what_is_known_is_told_so(port: int) -> None:
    async def fall_behind() -> None:
        session = await connected(client_at(port))
        _, revision = await session.list("")
        await session.disconnect()
        with backend_at(port) as other:
            writer = opened(other)
            for _ in range(3):
                writer.put({f"{number}": b"" for number in range(4000)}, timeout=T)
            await session.connect()
            with pytest.raises(ConnectionLost, match="has missed the changes"):
                async for _ in session.watch("", revision):
                    pass
        await session.end()
        await session.disconnect()

    asyncio.run(fall_behind())


def test_an_idle_session_asks_nothing_but_to_stay_alive(port: int) -> None:
    with backend_at(port) as backend, client(port) as redis:
        session, recorder = opened(backend, ttl=3), Recorder()
        session.watch("", recorder, timeout=T)
        before = redis.info("commandstats")
        with backend_at(port) as other:
            stopped = opened(other, ttl=3)
            stopped.put({"fuse": b""}, ephemeral=True, timeout=T)
            recorder.take(1)
            stopped.abandon()  # as if it had been killed
            recorder.take(2)
        after = redis.info("commandstats")

    def calls(command: str) -> int:
        count: int = after[command]["calls"] - before.get(command, {}).get("calls", 0)
        return count

    assert calls("cmdstat_xread") <= 4
    assert 4 <= calls("cmdstat_evalsha") <= 40
    assert calls("cmdstat_eval") == 0
