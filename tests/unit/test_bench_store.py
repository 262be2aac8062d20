"""The load generator of `rdzv bench store` counts right and believes nothing; the benchmark prints what it measured."""

import json
import socket
import statistics
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from launcher import tools
from launcher.bench import _load, store
from launcher.bench.store_cases import Case, DidNotFinish, measure
from launcher.bench.store_report import as_data, as_text
from launcher.bench.store_targets import Server, Target
from rdzv_plugins.errors import RdzvError, UsageError
from rdzv_plugins.kvstore.server import StoreServer

N, ROUNDS, GETS = 20, 3, 4
LIMIT_S = 60.0
REQUESTS = {
    "barrier": {"add": N * ROUNDS, "set": ROUNDS, "wait": (N - 1) * ROUNDS},
    "mesh": {"set": N, "wait": 2 * GETS * N, "get": GETS * N},
    "one_key": {"set": ROUNDS, "wait": (N - 1) * ROUNDS, "get": N * ROUNDS},
    "fill": {"set": 512, "get": 1},
    "multi_get": {"wait": N * ROUNDS, "multi_get": N * ROUNDS},
}
IDS = [*REQUESTS]
Answer = Callable[[socket.socket], object]


def connect(load: _load.Load, count: int = N, *, storm: bool = False, limit_s: float = LIMIT_S) -> _load.Figures:
    return load.connect(count, window=count, sources=[], storm=storm, limit_s=limit_s)


def run(load: _load.Load, workload: str, limit_s: float = LIMIT_S) -> _load.Figures:
    return load.run(workload, prefix="/test", rounds=ROUNDS, gets=GETS, limit_s=limit_s)


@pytest.fixture(scope="module", params=["libuv", "echo"])
def server(request) -> Iterator[Server]:
    with Server(Target(request.param), []) as started:
        started.wait_ready()
        yield started


def test_every_workload_gets_through_and_is_counted(server) -> None:
    load = _load.Load("127.0.0.1", server.port, echo=server.target.echo)
    figures = connect(load)
    assert (figures.requests, figures.timed, figures.failures) == (2 * N, N, {})
    for workload, requests in REQUESTS.items():
        figures = run(load, workload)
        assert figures.requests == sum(requests.values()), workload
        assert figures.timed <= figures.requests
        assert 0 < figures.p50_us <= figures.p99_us <= figures.seconds * 1e6
    load.idle(0)
    load.close()


def test_counts_are_those_of_the_server() -> None:
    with StoreServer("127.0.0.1") as server:
        load = _load.Load("127.0.0.1", server.port)
        connect(load)
        seen = server.stats()["requests"]
        assert (seen["validate"], seen["ping"]) == (N, N)
        for workload, expected in REQUESTS.items():
            before = server.stats()["requests"]
            run(load, workload)
            after = server.stats()["requests"]
            new = {name: count - before[name] for name, count in after.items() if count != before[name]}
            assert new == expected, workload
        load.close()


@contextmanager
def fake_server(answer: Answer, nonce: bytes = b"") -> Iterator[int]:
    """A server that shakes hands as it should, and then does what the test says; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as client:
                asked = client.recv(10, socket.MSG_WAITALL)[6:]
                client.sendall(nonce or asked)
                answer(client)
                try:
                    while client.recv(65536):  # until the load hangs up
                        pass
                except ConnectionResetError:
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def after(end: bytes, reply: bytes) -> Answer:
    """Send ``reply`` to the request that ends with ``end``."""

    def answer(client: socket.socket) -> None:
        said = b""
        while not said.endswith(end):
            said += client.recv(65536)
        client.sendall(reply)

    return answer


ADD = struct.pack("<q", 1)  # how the request ends
GET = b"/small/1511"
LIES = {
    "a count beyond the clients": ("barrier", ADD, struct.pack("<q", 2), "reply to add: 2, which is not within 1..1"),
    "another length": ("fill", GET, struct.pack("<q", 17), "reply to get: byte 0 of 24: expected 10 00 00 00 00"),
    "another value": ("fill", GET, struct.pack("<q", 16) + b"?", "reply to get: byte 8 of 24: expected .*, got 3f"),
    "more than asked for": ("barrier", ADD, bytes(9), "reply to add: byte 8 of 8: expected nothing, got 00"),
}


@pytest.mark.parametrize(("workload", "end", "reply", "error"), LIES.values(), ids=LIES)
def test_wrong_reply_is_named(workload, end, reply, error) -> None:
    with fake_server(after(end, reply)) as port:
        load = _load.Load("127.0.0.1", port)
        connect(load, 1)
        with pytest.raises(_load.LoadError, match=f"^{workload}: connection 0: {error}"):
            run(load, workload)
        load.close()


def test_wrong_answer_to_ping_ends_even_a_storm() -> None:
    with fake_server(lambda client: None, nonce=b"pong") as port:
        load = _load.Load("127.0.0.1", port)
        with pytest.raises(
            _load.LoadError, match=r"^connect: connection 0: reply to ping: byte 0 of 4: .* 70 6f 6e 67"
        ):
            connect(load, 1, storm=True)
        load.close()


def test_closed_connection_is_named() -> None:
    def hang_up(client: socket.socket) -> None:
        client.recv(65536)
        client.shutdown(socket.SHUT_WR)

    with fake_server(hang_up) as port:
        load = _load.Load("127.0.0.1", port)
        connect(load, 1)
        with pytest.raises(_load.ConnectionLost, match=r"^barrier: connection 0: closed by the server"):
            run(load, "barrier")
        load.close()


def test_limit_says_what_was_waited_for() -> None:
    with fake_server(lambda client: None) as port:
        load = _load.Load("127.0.0.1", port)
        connect(load, 1)
        with pytest.raises(_load.TimeLimit, match=r"1 of 1 clients were not done within 0.1 s; connection 0 .* add$"):
            run(load, "barrier", limit_s=0.1)
        load.close()


def test_storm_counts_what_fails() -> None:
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        load = _load.Load("127.0.0.1", refusing.getsockname()[1])
        assert connect(load, 3, storm=True).failures == {"connect: Connection refused": 3}
        with pytest.raises(_load.LoadError, match="connection 0 is not there"):
            run(load, "barrier")
        load.close()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        load = _load.Load("127.0.0.1", silent.getsockname()[1])
        assert connect(load, 3, storm=True, limit_s=0.1).failures == {"no answer to ping within 0.1 s": 3}
        load.close()


def test_server_that_is_too_slow_is_a_result_and_a_liar_is_an_error() -> None:
    case = Case("barrier", 1, rounds=ROUNDS, gets=GETS, limit_s=0.2)
    with Server(Target("libuv"), []) as server:  # stands for a store; it is its port that is asked
        with fake_server(lambda client: None) as server.port, pytest.raises(DidNotFinish, match=r"add$"):
            measure(case, server, "/test")
        with fake_server(after(ADD, bytes(9))) as server.port, pytest.raises(RdzvError, match=r"^libuv, 1 conn"):
            measure(case, server, "/test")
    result = store.Result(case, {"libuv": []}, {"libuv": "barrier: 1 of 1 clients were not done"})
    assert "libuv           did not finish: barrier: 1 of 1 clients" in as_text(as_data(result))


def test_command_prints_what_it_measured(capfd) -> None:
    command = ["bench", "store", "--quick", "--connections=20", "--workloads=barrier", "--repeats=2", "--json"]
    assert tools.main([*command, "--targets=ours,libuv,echo,ours:2"]) == 0
    (case,) = json.loads(capfd.readouterr().out)["cases"]
    assert (case["workload"], case["connections"], case["rounds"]) == ("barrier", 20, 2)
    assert set(case["targets"]) == {"ours", "ours:2", "libuv", "echo"}
    for target in case["targets"].values():
        assert (target["runs"], target["requests"]) == (2, 2 * 20 * 2)
        assert (target["failures"], target["unfinished"]) == ({}, None)
        for figure in ("wall_s", "cpu_us", "p50_us", "p99_us", "peak_mib"):
            assert 0 < target[figure]["min"] <= target[figure]["median"] <= target[figure]["max"]
    runs = zip(*(case["targets"][name]["cpu_us"]["samples"] for name in ("ours", "libuv")), strict=True)
    ratio = statistics.median(ours / libuv for ours, libuv in runs)
    assert case["ratios"]["ours / libuv"]["cpu_us"] == pytest.approx(ratio, abs=0.001)
    assert "grown_mib" not in case["ratios"]["ours / libuv"]
    rows = [row.strip().partition("  ")[0] for row in as_text(case).splitlines()[2:]]
    assert rows == ["ours", "libuv", "echo", "ours:2", *case["ratios"]]


def test_storms_and_hold_as_text(capfd) -> None:
    command = ["bench", "store", "--quick", "--storm=20", "--hold=20", "--workloads=storm,hold,names"]
    assert tools.main([*command, "--targets=ours,echo"]) == 0
    out = capfd.readouterr().out
    assert out.count("; 20 connections\n") == 3
    assert out.count("\n  ours / echo  ") == 3
    assert "Reverse DNS: " in out


@pytest.mark.parametrize(
    ("argument", "error"),
    {
        "--targets=theirs": "--targets: 'theirs' is none of ours, libuv",
        "--targets=echo:2": "--targets: 'echo:2'",
        "--workloads=nap": "--workloads: 'nap' is none of storm, barrier",
        "--connections=1000,no": "--connections=no: a whole number, at least 1",
        "--repeats=0": "--repeats=0: a whole number",
        "--limit=0": "--limit=0: a number of seconds",
        "--storm=100000000": "100000000 connections need 100000100 open files",
    }.items(),
)  # fmt: skip
def test_wrong_argument_is_named(argument, error, capsys) -> None:
    assert tools.main(["bench", "store", argument]) == UsageError.exit_code
    assert error in capsys.readouterr().err
