"""The server for /healthz and /readyz, over real sockets, and what it says."""

from __future__ import annotations

import contextlib
import http.client
import math
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kits.clock import Clock

from rdzv_launcher.run import health as server_module
from rdzv_launcher.run.agent.loop import MainThreadHeartbeat
from rdzv_launcher.run.health import (
    MOST_BYTES,
    Health,
    HealthServer,
    HttpAnswer,
    Wanted,
    read_request,
    readiness,
    response,
)
from rdzv_launcher.run.workers.worker_group import Worker, WorkerGroup
from rdzv_plugins.testing.harness import free_port

GROUP = WorkerGroup(1, 4, (Worker(0, 2, 2, 8, 8), Worker(1, 3, 3, 8, 8)))


@pytest.fixture
def health() -> Health:
    return Health(MainThreadHeartbeat(), patience=30.0)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is dropped only because client or server did not get to run for a while."""
    monkeypatch.setattr(server_module, "_SECONDS", 60.0)


def serve(health: Health) -> HealthServer:
    opened = HealthServer.open(health, free_port())
    assert opened is not None
    return opened


@pytest.fixture
def server(health: Health) -> Iterator[HealthServer]:
    with contextlib.closing(serve(health)) as opened:
        yield opened


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def raw(port: int, data: bytes) -> bytes:
    """All that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(data)
        with contextlib.suppress(ConnectionResetError):  # it had more to say than is listened to
            return b"".join(iter(lambda: client.recv(4096), b""))
    return b""


def test_who_asks_is_told(server: HealthServer, health: Health) -> None:
    assert get(server.port, "/healthz") == (200, "alive: this node is about to join the others\n")
    assert get(server.port, "/readyz") == (503, "this node is about to join the others\n")
    health.tell_by(lambda: (True, "works: node 1 of 4"))
    assert get(server.port, "/readyz?verbose") == (200, "works: node 1 of 4\n")
    assert get(server.port, "/readyz", "HEAD") == (200, "")
    assert get(server.port, "/metric") == (404, "there are /healthz, /readyz and /metrics\n")
    assert get(server.port, "/metrics")[0] == 503, "there is nothing to measure yet"
    assert get(server.port, "/readyz", "POST")[0] == 405


def test_a_main_thread_that_is_late_stands_still() -> None:
    heartbeat = MainThreadHeartbeat(clock := Clock())
    health = Health(heartbeat, patience=30.0)
    heartbeat.beat(None)
    assert heartbeat.overdue() == -math.inf
    assert health.answer("/healthz").status == 200
    heartbeat.beat(5.0)
    assert heartbeat.overdue() == -5.0
    clock.seconds += 5.0 + 29.0
    assert heartbeat.overdue() == 29.0
    assert health.answer("/healthz").status == 200, "not for long enough"
    clock.seconds += 2.0
    answer = health.answer("/healthz")
    assert answer.status == 503
    assert "the agent's main thread has stood still for 31 s, at " in answer.text
    assert "(place)" in answer.text, "this thread is asking where it is"
    assert health.answer("/readyz").status == 503


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", None),
        (b"GET /healthz HTTP/1.1\r\nHost: a", None),
        (b"GET /healthz HTTP/1.1\r\n\r\n", Wanted("/healthz")),
        (b"HEAD /healthz HTTP/1.0\r\nA: b\r\n\r\n", Wanted("/healthz", head=True)),
        (b"GET /healthz HTTP/1.1\n\n", Wanted("/healthz")),
        (b"DELETE /healthz HTTP/1.1\r\n\r\n", Wanted(refused=405)),
        *(
            (line + b"\r\n\r\n", Wanted(refused=400))
            for line in (b"GET healthz HTTP/1.1", b"GET /h\xff HTTP/1.1", b"GET / HTTP/2.0", b"\x16\x03\x01\x02\0\x01")
        ),
        (b"a" * MOST_BYTES, Wanted(refused=431)),
        (b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * MOST_BYTES, Wanted(refused=431)),
    ],
)
def test_request(data: bytes, wanted: Wanted | None) -> None:
    assert read_request(data) == wanted
    if wanted is not None and wanted.refused:
        assert response(wanted.refused, "no").startswith(b"HTTP/1.1 %d " % wanted.refused)


def test_what_is_no_request_is_refused_and_the_next_is_answered(server: HealthServer, health: Health) -> None:
    assert raw(server.port, b"hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    raw(server.port, b"GET /" + b"a" * 200_000)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # it is reset when it is closed
        client.sendall(b"GET /healthz HTTP/1.1\r\n")
    health.tell_by(lambda: (True, str(1 // 0)))  # a plug-in that raises when it is asked is borne
    status, text = get(server.port, "/readyz")
    assert (status, "cannot tell what this agent waits for: ZeroDivisionError" in text) == (503, True)
    assert get(server.port, "/healthz")[0] == 200


@pytest.mark.parametrize("asks", [b"", b"GET /hea", b"GET /long HTTP/1.1\r\n\r\n"])
def test_more_than_there_are_places_who_do_not_ask_or_read_cost_nobody_else_the_answer(asks: bytes) -> None:
    """Who says nothing, says a byte now and then, or does not take a long answer: the oldest make room."""
    text = "a" * 2**22  # no socket takes that at once

    def answer(path: str) -> HttpAnswer:
        return HttpAnswer(200, text if path == "/long" else "short")

    with contextlib.ExitStack() as stack:
        opened = HealthServer(answer, socket.create_server(("127.0.0.1", 0)))
        stack.callback(opened.close)
        idle = []
        for _ in range(server_module._MOST * 2):
            idle.append(stack.enter_context(socket.create_connection(("127.0.0.1", opened.port), timeout=20)))
            idle[-1].sendall(asks)
        assert get(opened.port, "/short") == (200, "short\n")
        assert get(opened.port, "/long") == (200, f"{text}\n")
        assert b"long" in asks or idle[0].recv(1) == b"", "the first has made room"


def test_a_slow_one_is_dropped_when_its_time_is_over(health: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_SECONDS", 0.2)
    with contextlib.closing(serve(health)) as opened, socket.create_connection(("127.0.0.1", opened.port)) as slow:
        slow.sendall(b"GET /hea")
        slow.settimeout(20)
        assert slow.recv(1) == b""


def test_a_port_that_is_taken_is_said_and_nothing_more(
    server: HealthServer, health: Health, caplog: pytest.LogCaptureFixture
) -> None:
    assert HealthServer.open(health, server.port) is None
    assert f"--health-port={server.port}" in caplog.text


def test_closed_is_closed(health: Health) -> None:
    opened = serve(health)
    port = opened.port
    with socket.create_connection(("127.0.0.1", port)) as held:
        assert get(port, "/healthz")[0] == 200
        opened.close()
        assert "rdzv-health" not in [thread.name for thread in threading.enumerate()]
        assert held.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("stage", "group", "ready", "says"),
    [
        ("joining", None, False, "waits for other nodes"),
        ("joining", GROUP, False, "missing: node rank 1"),
        ("working", GROUP, True, "node 1 of 4, workers: 2"),
        ("barrier", GROUP, True, "waits for the others"),
        ("staying", GROUP, True, "done"),
        ("staying", None, False, ""),  # a spare that has never worked
        *((stage, GROUP, False, "") for stage in ("stopping", "asking", "counting", "delaying", "finding", "ended")),
    ],
)
def test_who_is_ready_in_which_stage(stage: Any, group: WorkerGroup | None, ready: bool, says: str) -> None:
    told, text = readiness(stage, group, "missing: node rank 1" if stage == "joining" and group else "")
    assert told is ready
    assert says in text
