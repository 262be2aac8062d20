"""Each thing that can be wrong with a Redis has a message of its own, and a remedy."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit import T, backend_at, client, opened, redis_server, refused, wait_until
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.testing import free_port

from rdzv_redis import Target, parse_target
from rdzv_redis.conformance import RedisHarness
from rdzv_redis.wire import Unusable, check


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """The port of something that answers every connection with that, once asked, and hangs up; b"": it keeps still."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                if not answer:
                    kept.append(connection)
                    continue
                with connection, contextlib.suppress(OSError):  # the one who asks may be gone
                    connection.recv(1000)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(T)
            for each in kept:
                each.close()


def test_nobody_is_there() -> None:
    port = free_port()
    error = refused(port, timeout=2)
    assert f"Redis at 127.0.0.1:{port} could not be reached within 2 s: connection refused" in str(error)
    error = refused(port, timeout=3, host="no-such-host.invalid")
    assert "could not be reached within 3 s: the name does not resolve" in str(error)
    assert "IP address" in error.remedy


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "something other than Redis"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "something other than Redis"),
        (b"", "accepts connections, but does not answer"),
        (b"-DENIED Redis is running in protected mode because protected mode is enabled\r\n", "protected mode"),
        (b"-LOADING Redis is loading the dataset in memory\r\n", "loading its data"),
        (b"-ERR max number of clients reached\r\n", "maxclients"),
        (b"-ERR unknown command 'HELLO'\r\n", "too old"),
        (b"-MASTERDOWN Link with MASTER is down\r\n", "has lost its master"),
    ],
)
def test_what_answers_is_no_redis_that_can_be_used(answer: bytes, says: str) -> None:
    with answering(answer) as port:
        assert says in str(refused(port, timeout=3))


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({b"version": b"6.0.16"}, "6.0.16, which is too old"),
        ({b"version": b"7.2.4", b"mode": b"sentinel"}, "Sentinel"),
        ({b"version": b"7.2.4", b"mode": b"standalone", b"role": b"replica"}, "replica"),
    ],
)
def test_servers_of_the_wrong_kind(facts: dict[bytes, bytes], says: str) -> None:
    with pytest.raises(Unusable, match=says) as raised:
        check(facts)
    assert raised.value.reason.final
    check({b"version": b"6.2.0", b"mode": b"standalone", b"role": b"master"})
    check({b"version": b"10.0", b"mode": b"standalone", b"role": b"master"})
    check({})


def test_a_cluster_and_a_replica_are_refused_at_once(tmp_path: Path) -> None:
    with redis_server(tmp_path / "cluster", {"cluster-enabled": "yes"}) as cluster:
        error = refused(cluster.port)
        assert "Redis Cluster, which is not supported" in str(error)
    with redis_server(tmp_path / "replica", {"replicaof": f"127.0.0.1 {free_port()}"}) as replica:
        assert "it is a replica, which accepts no writes" in str(refused(replica.port))


def test_a_database_that_is_not_there(harness: RedisHarness) -> None:
    assert harness._server is not None
    error = refused(harness._server.port, db=99)
    assert "no database of that number" in str(error)
    assert "db=NUMBER" in error.remedy


def test_a_redis_whose_memory_is_full(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server, client(server.port) as redis, backend_at(server.port) as backend:
        session = opened(backend)
        redis.config_set("maxmemory", "1")
        assert "memory is full" in str(refused(server.port))
        with pytest.raises(TimeoutError, match="memory is full"):
            session.put({"k": b""}, timeout=3)
        redis.config_set("maxmemory", "0")
        assert session.put({"k": b""}, timeout=T)


def test_a_redis_that_cannot_save(tmp_path: Path) -> None:
    settings = {"save": "3600 1", "enable-protected-configs": "yes"}
    with redis_server(tmp_path, settings) as server, client(server.port) as redis:
        redis.config_set("dir", "/proc")  # where nobody can write
        redis.set("changed", "1")
        redis.execute_command("BGSAVE")
        wait_until(lambda: redis.info("persistence")["rdb_last_bgsave_status"] != "ok")
        assert "cannot save to its disk" in str(refused(server.port))


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("redis-1", ("", Target(Endpoint("redis-1", 6379)))),
        ("10.0.0.1:6400", ("", Target(Endpoint("10.0.0.1", 6400)))),
        ("[::1]:6400", ("", Target(Endpoint("::1", 6400)))),
        ("redis://h", ("redis", Target(Endpoint("h", 6379)))),
        ("rediss://h:6400/3", ("rediss", Target(Endpoint("h", 6400), 3))),
        ("redis://h/", ("redis", Target(Endpoint("h", 6379)))),
    ],
)
def test_endpoints(text: str, target: tuple[str, Target]) -> None:
    assert parse_target(text, None) == target


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "where Redis is"),
        ("redis://user:secret@h", "can be read by others"),
        ("redis://h/x", "not the number of a database"),
        ("redis://h/2", "contradicts --rdzv-conf db=1"),
    ],
)
def test_endpoints_that_are_none(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        parse_target(text, 1)
    assert raised.value.remedy
    assert "secret" not in str(raised.value) + raised.value.remedy


def test_no_name_is_looked_up_but_the_endpoints(harness: RedisHarness) -> None:
    asked: list[object] = []
    looks = {"socket.getaddrinfo", "socket.gethostbyaddr", "socket.getnameinfo", "socket.gethostbyname"}
    sys.addaudithook(lambda event, arguments: asked.append(arguments[0]) if event in looks else None)
    assert harness._server is not None
    with backend_at(harness._server.port, host="localhost") as backend:
        session = opened(backend)
        assert session.put({"k": b""}, timeout=T)
        assert session.local_addr == session.remote_addr == "127.0.0.1"
        assert set(asked) == {"localhost"}
