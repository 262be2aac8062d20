"""The load generator of `rdzv bench store` counts right and believes nothing; the benchmark prints what it measured."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kits.bench.bench_kit import bench, find, with_openssl

from rdzv_launcher.bench import _load
from rdzv_launcher.bench.method.points import compare
from rdzv_launcher.bench.method.results import Result
from rdzv_launcher.bench.method.turns import DidNotFinish, Turns
from rdzv_launcher.bench.processes.closed import conf_of
from rdzv_launcher.bench.store.bench import _Servers
from rdzv_launcher.bench.store.cases import StoreCase, StoreSample, measure
from rdzv_launcher.bench.store.figures import as_points, notes
from rdzv_launcher.bench.store.many import measure_many
from rdzv_launcher.bench.store.servers import StoreProcess, StoreTarget, parse_target
from rdzv_launcher.bench.store.sessions import measure_sessions
from rdzv_launcher.tools import cli as tools
from rdzv_plugins.errors import RdzvError, UsageError
from rdzv_plugins.kvstore.native.server import StoreServer

pytestmark = pytest.mark.thorough

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
def server(request) -> Iterator[StoreProcess]:
    with StoreProcess(StoreTarget(request.param), []) as started:
        started.start()
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
    case = StoreCase("barrier", 1, rounds=ROUNDS, gets=GETS, limit_s=5)
    with StoreProcess(StoreTarget("ours"), []) as server:  # stands for a store; it is its port that is asked
        with fake_server(lambda client: None) as server.port, pytest.raises(DidNotFinish, match=r"add$"):
            measure(case, server, "/test")
        with fake_server(after(ADD, bytes(9))) as server.port, pytest.raises(RdzvError, match=r"^ours, 1 conn"):
            measure(replace(case, limit_s=60), server, "/test")


@pytest.fixture(scope="module")
def measured() -> Result:
    """A quick run with repeats, of workloads of each kind."""
    sizes = ["--connections=20", "--storm=20", "--hold=30", "--repeats=2"]
    return bench(
        "store", "--quick", *sizes, "--workloads=storm,barrier,hold", "--targets=ours,echo,ours:2", "--json"
    ).result()


def test_every_server_is_measured_in_every_turn(measured) -> None:
    assert (measured.bench, measured.end is not None) == ("store", True)
    assert measured.manifest["options"]["targets"] == ["ours", "echo", "ours:2"]
    cases = {"storm, 20 clients": 20, "barrier, 20 clients": 20, "hold, 30 clients": 30}
    assert {(p.case, p.nodes, p.axis) for p in measured.points} == {(c, n, "clients") for c, n in cases.items()}
    for case in cases:
        figures = {"wall", "cpu_per_request", "p50", "p99"} | ({"grown"} if case.startswith("hold") else set())
        points = [p for p in measured.points if p.case == case]
        assert {(p.target, p.figure) for p in points} == {
            (target, figure) for target in ("ours", "echo", "ours:2") for figure in figures
        }
        for p in points:
            assert len(p.samples) == 2
            assert p.reference == (p.target == "echo")
            assert all(sample > 0 for sample in p.samples) or p.figure == "grown"
    assert {(r.target, r.reference) for r in measured.ratios} == {("ours", "echo"), ("ours:2", "echo")}


def test_what_was_asked_is_in_the_details(measured) -> None:
    storm, barrier, _hold = measured.details
    assert (barrier["case"], barrier["workload"], barrier["connections"]) == ("barrier, 20 clients", "barrier", 20)
    for details, requests in ((storm, 2 * 20), (barrier, 2 * 20 * 2)):
        for runs in details["runs"].values():
            assert [(run["requests"], run["failures"]) for run in runs] == [(requests, {})] * 2
    for target, runs in barrier["runs"].items():
        cpu = find(measured, barrier["case"], target, "cpu_per_request")
        assert cpu.samples == tuple(run["cpu_us"] for run in runs)


@pytest.mark.parametrize(("workload", "new"), [("hold", True), ("barrier", False)])
def test_servers_that_hold_are_new_in_each_turn(workload, new) -> None:
    with ExitStack() as running:
        case = StoreCase(workload, 10, rounds=1, gets=1, limit_s=1)
        servers = _Servers(case, [StoreTarget("echo"), StoreTarget("ours")], [], running, {})
        pids = [[servers.of(name, turn)[0].pid for name in ("echo", "ours", "echo")] for turn in (-1, 0, 1)]
        for echo, ours, again in pids:
            assert echo == again != ours
        assert len({pid for turn in pids for pid in turn}) == (6 if new else 2)
        alive = pids[-1][:2]
        assert all(Path(f"/proc/{pid}").exists() == (not new or pid in alive) for turn in pids for pid in turn)
    assert not any(Path(f"/proc/{pid}").exists() for turn in pids for pid in turn)


def test_many_clients_are_in_several_processes_and_each_asks_once() -> None:
    sizes = ["--many=30", "--per-process=12", "--repeats=2", "--targets=ours,echo"]
    result = bench("store", "--workloads=many", *sizes, "--json").result()
    (details,) = result.details
    assert "3 of each" in details["title"]
    for runs in details["runs"].values():
        for sample in runs:
            assert sample["requests"] == 30 * 3, "VALIDATE, PING, and what is asked"
            assert sample["wall_s"] == pytest.approx(sum(sample["phases"].values()))
            assert sample["phases"].keys() == {"connect", "ask"}
    assert find(result, "many, 30 clients", "ours", "wall").nodes == 30


def test_a_server_that_accepts_no_session_is_not_measured_as_if_it_did(tmp_path) -> None:
    case = StoreCase("ask", 2, rounds=1, gets=1, limit_s=LIMIT_S)
    with StoreProcess(StoreTarget("ours", "token"), [], conf_of("token", tmp_path)) as server:
        server.start()
        server.conf = {}
        with pytest.raises(RdzvError, match="needs the job's token"):
            measure_sessions(case, server, "/test")
        server.conf = conf_of("token", tmp_path)
        with pytest.raises(RdzvError, match="does not accept this node's token"):
            measure_sessions(case, server, "/test")


@with_openssl
def test_sessions_are_measured_in_every_way_beside_open_ones() -> None:
    ways = ["ours", "ours, token", "ours, tls", "ours, token+tls"]
    sizes = ["--sessions=3", "--rounds=2", "--repeats=2", "--targets=ours,echo", "--closed=token,tls,token+tls"]
    result = bench("store", "--workloads=open,ask", *sizes, "--json").result()
    assert [details["case"] for details in result.details] == ["open, 3 sessions", "ask, 3 sessions"]
    for details, requests in zip(result.details, (3, 3 * 2 * 2), strict=True):
        assert [*details["runs"]] == ways, "nobody else has sessions"
        for way, samples in details["runs"].items():
            assert [sample["requests"] for sample in samples] == [requests] * 2
            both = find(result, details["case"], way, "cpu_both")
            alone = find(result, details["case"], way, "cpu_per_request")
            assert all(0 < mine < ours for mine, ours in zip(alone.samples, both.samples, strict=True))
            assert alone.reference == (way == "ours")
    assert {(ratio.target, ratio.reference) for ratio in result.ratios} == {(way, "ours") for way in ways[1:]}


def test_processes_share_the_clients() -> None:
    case = StoreCase("many", 98_304, rounds=1, gets=1, limit_s=1, per_process=16_384)
    assert case.shares == [16_384] * 6
    assert replace(case, connections=30, per_process=12).shares == [10, 10, 10]
    assert replace(case, per_process=0).shares == [98_304]


def test_one_process_that_is_too_slow_is_a_result_and_a_liar_an_error() -> None:
    case = StoreCase("many", 2, rounds=1, gets=1, limit_s=5, per_process=1)
    with StoreProcess(StoreTarget("ours"), []) as one, StoreProcess(StoreTarget("ours"), []) as other:
        for server in (one, other):
            server.start()
        with fake_server(lambda client: None) as other.port, pytest.raises(DidNotFinish, match=r"in 1 of 2 processes"):
            measure_many(case, [one, other], "/late")
        wrong = r"ours, many, 2 clients: enrol: connection 0: reply to add: 2, which"
        with fake_server(after(ADD, struct.pack("<q", 2))) as other.port, pytest.raises(RdzvError, match=wrong):
            measure_many(replace(case, limit_s=60), [one, other], "/lie")


def test_failures_are_told_under_the_table() -> None:
    case = StoreCase("storm", 10, rounds=1, gets=1, limit_s=1)
    bad = StoreSample(1.0, 20, 1.0, 1.0, 1.0, 1.0, 0.0, listen_overflows=3, listen_drops=3, failures={"no answer": 2})
    good = replace(bad, listen_overflows=0, failures={})
    assert notes(case, Turns({"libuv": [bad, good], "ours": [good]})) == [
        "libuv: 2 of 20 connections failed: no answer",
        "libuv: a full accept queue cost 3 connection attempts (TcpExt ListenOverflows, of the whole machine)",
    ]
    targets = [parse_target("libuv"), parse_target("ours")]
    points = as_points(case, targets, Turns({"libuv": [bad, good], "ours": [good, good]}))
    told = {"libuv": "2 of 20 connections failed", "ours": ""}
    assert {(point.target, point.unfinished) for point in points} == set(told.items())
    assert all("did not finish" in ratio.refused for ratio in compare(points))


def test_terminal_has_tables_and_says_what_they_are() -> None:
    done = bench("store", "--quick", "--storm=20", "--workloads=storm,names", "--targets=ours,echo")
    assert done.returncode == 0, done.stderr
    for case in ("storm, 20 clients", "names, 20 clients"):
        assert f"\n{case}\n  wall time [s]\n    ours  " in done.stdout
        assert f"store: measuring {case}" in done.stderr
    assert "no ratios: one run each" in done.stdout
    for said in ("Reverse DNS: ", "a bare epoll loop: ", "all connect at once", "for each request that was sent"):
        assert said in done.stdout
    assert "barrier" not in done.stdout


@pytest.mark.parametrize(
    ("argument", "error"),
    {
        "--targets=theirs": "--targets: 'theirs' is none of ours, libuv",
        "--targets=echo:2": "--targets: 'echo:2'",
        "--workloads=nap": "--workloads: 'nap' is none of storm, barrier",
        "--connections=1000,no": "--connections=no: a whole number, at least 1",
        "--repeats=0": "--repeats=0: a whole number",
        "--limit=0": "--limit=0: a number of seconds",
        "--closed=open": "--closed: 'open' is none of token, tls, token+tls",
        "--closed=tls --targets=echo": "--closed is about open and ask of ours, which are not measured",
        "--closed=tls --workloads=storm": "--closed is about open and ask of ours, which are not measured",
        "--storm=100000000": "100000000 connections need 100000100 open files",
    }.items(),
)  # fmt: skip
def test_wrong_argument_is_named(argument, error, capsys) -> None:
    assert tools.main(["bench", "store", *argument.split()]) == UsageError.exit_code
    assert error in capsys.readouterr().err
