"""`rdzv bench tiered` runs, and counts at the root what the design promises: a node's share, not a rank's square."""

import os
import socket
import struct
import threading
import time

import pytest
from kits.bench.bench_kit import bench, find, with_openssl

from rdzv_launcher.bench.method.results import Result
from rdzv_launcher.bench.method.turns import DidNotFinish, Turns
from rdzv_launcher.bench.processes.closed import conf_of
from rdzv_launcher.bench.processes.hosts import Network
from rdzv_launcher.bench.processes.parts import Part
from rdzv_launcher.bench.tiered.cases import TieredCase, Way, measure
from rdzv_launcher.bench.tiered.figures import as_points
from rdzv_launcher.bench.tiered.goals import Goal, as_text, goals
from rdzv_launcher.bench.tiered.parts import TieredParts
from rdzv_launcher.tools import cli as tools
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AccessRefused, UsageError
from rdzv_plugins.kvstore.native.framing import ask_statistics

pytestmark = pytest.mark.thorough

NODES, PER_NODE = 8, 4
RANKS = NODES * PER_NODE
MANY_NODES, MANY_PER_NODE, FANOUT = 8, 8, 2


@pytest.fixture(scope="module", params=["loopback", "auto"])
def quick(request) -> Result:
    """The figures of one quick run with each kind of nodes."""
    return bench("tiered", "--quick", "--json", "--tree=none", f"--hosts={request.param}").result()


def runs(result: Result, stage: str, target: str) -> list[dict]:
    """What was read in the runs of all cases with this stage by this way."""
    stages = [details for details in result.details if f", {stage}" in details["case"] and target in details["runs"]]
    found = [run for details in stages for run in details["runs"][target]]
    assert found
    return found


def few(run: dict) -> bool:
    """Whether it is of gloo's start, which has fewer ranks than NCCL's."""
    return run["connect"]["asked"] < 2 * MANY_NODES * MANY_PER_NODE


def test_every_way_is_measured_in_the_same_cases(quick) -> None:
    few, many = f"{NODES} nodes x {PER_NODE} ranks", f"{MANY_NODES} nodes x {MANY_PER_NODE} ranks"
    stages = {f"{few}, gloo init", f"{few}, barrier", f"{few}, gloo init, 2 ms", f"{few}, barrier, 2 ms"}
    of_many = {f"{many}, NCCL init", f"{many}, barrier"}
    assert {point.case for point in quick.points} == stages | of_many
    for case in stages | of_many:
        points = [point for point in quick.points if point.case == case]
        targets = {"direct", "tiered", "tiered-unix"} | ({f"tiered, fanout={FANOUT}"} if case in of_many else set())
        targets |= {"echo"} if case.startswith(few) and not case.endswith("2 ms") else set()
        figures = {"wall", "root_requests", "root_bytes", "cpu"}
        assert {(p.target, p.figure) for p in points} == {(t, f) for t in targets for f in figures}
        for p in points:
            assert (p.nodes, len(p.samples), p.reference) == (NODES, 1, p.target in ("direct", "echo"))
            assert (p.samples[0] > 0) == (p.target != "echo" or not p.figure.startswith("root_")), "it asks nobody"
    assert {ratio.reference for ratio in quick.ratios} == {"direct", "echo"}
    assert (quick.bench, quick.end is not None) == ("tiered", True)


def test_points_are_what_was_counted_at_the_root(quick) -> None:
    for details in quick.details:
        for target, of_target in details.get("runs", {}).items():
            requests = find(quick, details["case"], target, "root_requests")
            assert requests.samples == tuple(sum(run["root"].values()) for run in of_target)
            sent = find(quick, details["case"], target, "root_bytes")
            assert sent.samples == tuple(run["root_received"] + run["root_sent"] for run in of_target)


def test_direct_ranks_ask_all_of_it_of_the_root(quick) -> None:
    for run in runs(quick, "gloo init", "direct"):
        assert run["root"] == {"add": RANKS, "set": RANKS, "wait": 2 * RANKS**2, "get": RANKS**2}
        assert run["connections"] == RANKS
    for run in runs(quick, "barrier", "direct"):
        assert run["root"] == {"barrier": RANKS if few(run) else MANY_NODES * MANY_PER_NODE}


@pytest.mark.parametrize("route", ["tiered", "tiered-unix"])
def test_nodes_ask_for_each_rank_once(quick, route) -> None:
    for run in runs(quick, "gloo init", route):
        assert RANKS * (NODES - 1) <= sum(run["root"].values()) <= 1.5 * RANKS * NODES
        assert run["asked"] == RANKS * (2 + 3 * RANKS)
        assert run["connections"] == NODES
        assert run["proxies"]["requests"] >= run["asked"]
    for run in runs(quick, "barrier", route):
        assert NODES <= sum(run["root"].values()) <= 2 * NODES
        assert run["connections"] == NODES


def test_second_tier_leaves_few_connections_at_the_root(quick) -> None:
    for run in runs(quick, "barrier", f"tiered, fanout={FANOUT}"):
        assert run["connections"] == FANOUT
        assert sum(run["root"].values()) <= 2 * MANY_NODES
    for run in runs(quick, "NCCL init", "direct"):
        ranks = MANY_NODES * MANY_PER_NODE
        assert run["root"] == {"add": ranks, "set": 1, "wait": ranks - 1, "get": ranks - 1}


def test_goals_of_counts_are_met_and_ratios_of_single_runs_are_not_judged(quick) -> None:
    (goals,) = (details["goals"] for details in quick.details if details["case"] == "goals")
    counts = [each for each in goals if "beside direct" not in each["goal"]]
    assert len(counts) >= 8
    assert [each for each in counts if not each["met"]] == []
    ratios = [each for each in goals if "beside direct" in each["goal"]]
    assert {(each["met"], each["measured"], "one run each" in each["refused"]) for each in ratios} == {
        (None, None, True)
    }


@pytest.mark.parametrize(("measured", "word"), [(0.2, "met"), (0.25, "met"), (0.3, "MISSED"), (None, "open")])
def test_goals_are_told_with_what_was_measured(measured, word) -> None:
    goal = Goal("time of the init, beside direct", "4 nodes", 0.25, measured, "" if measured else "one run each")
    (line,) = as_text([goal]).splitlines()[1:]
    assert line.split()[0] == word
    assert line.endswith("one run each") == (word == "open")


@pytest.mark.parametrize(("stage", "count"), [("gloo init", 3), ("barrier", 2)])
def test_goals_of_a_way_that_did_not_finish_are_open(stage, count) -> None:
    case, ways = TieredCase(128, 8, (), limit_s=1), [Way("direct"), Way("tiered")]
    turns = Turns({way.name: [] for way in ways}, {"direct": "too slow", "tiered": "no answer within 1 s"})
    reached = goals(case, stage, ways, turns, as_points(case, stage, ways, turns))
    assert len(reached) == count
    assert {(goal.met, goal.refused) for goal in reached} == {(None, "no answer within 1 s")}
    lines = as_text(reached).splitlines()[1:]
    assert all(line.split()[0] == "open" and line.endswith(": no answer within 1 s") for line in lines if line)


def test_real_workers_come_together_through_proxies() -> None:
    done = bench(
        "tiered",
        "--quick",
        "--json",
        "--nodes=none",
        "--many=none",
        "--tree=none",
        "--workers=2x2",
        "--routes=direct,tiered",
    )
    result = done.result()
    case = "2 nodes x 2 ranks, workers of torch"
    (details,) = (details for details in result.details if details["case"] == case)
    (direct,), (tiered,) = details["runs"]["direct"], details["runs"]["tiered"]
    assert (direct["connections"], tiered["connections"]) == (4, 2)
    assert {name: direct["root"][name] for name in ("set", "wait", "get")} == {"set": 4, "wait": 32, "get": 16}
    assert find(result, case, "tiered", "root_requests").median < find(result, case, "direct", "root_requests").median
    assert find(result, case, "tiered", "wall").samples == (tiered["wall_s"],)


@with_openssl
def test_trunks_that_are_closed_to_strangers_are_measured_beside_open_ones() -> None:
    only = ["--nodes=2", "--per-node=2", "--many=none", "--tree=none", "--routes=direct,tiered", "--delay=0"]
    closed = ["token", "tls", "token+tls"]
    for hosts in ("loopback", "auto"):
        more = [f"--hosts={hosts}", f"--closed={','.join(closed)}"]
        result = bench("tiered", "--quick", "--json", *only, *more).result()
        (plain,) = runs(result, "gloo init", "tiered")
        for way in closed:
            (run,) = runs(result, "gloo init", f"tiered, {way}")
            assert (run["asked"], run["connections"]) == (plain["asked"], 2)
            assert run["proxies"]["lost"] == []
        goals = next(details["goals"] for details in result.details if details["case"] == "goals")
        cpu = [goal for goal in goals if goal["goal"] == "CPU, beside tiered"]
        most = {goal["where"].rpartition(", ")[2]: goal["most"] for goal in cpu}
        assert most == {"token": 1.05, "tls": 2.0, "token+tls": 2.0}


@with_openssl
@pytest.mark.parametrize(("way", "why"), [("token", "needs the job's token"), ("tls", "speaks TLS")])
def test_the_root_of_a_closed_way_lets_in_its_proxies_and_nobody_else(tmp_path, way, why) -> None:
    with Network(1, namespaces=False) as network:
        conf = conf_of(way, tmp_path)
        with TieredParts(network, network.nodes, per_node=1, delay_s=0.0, conf=conf) as parts:
            parts.open_proxies(unix=False, fanout=0)
            assert parts.root.question()["connections"]["open"] == 1
            with pytest.raises(AccessRefused, match=why):
                ask_statistics(Endpoint(*parts.entrance), 60)


def test_way_that_does_not_finish_is_a_result() -> None:
    with (
        pytest.raises(DidNotFinish, match=r"clients had no answer|clients were not done"),
        Network(8, namespaces=False) as network,
    ):
        measure(TieredCase(8, 32, ("enrol", "gloo"), limit_s=0.01), Way("direct"), network)


def test_relay_passes_all_on_and_takes_its_time() -> None:
    delay_s, data = 0.05, os.urandom(20_000_000)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        task = {"machine": {"address": host, "network": ""}, "host": host, "port": port, "delay_s": delay_s}
        with Part("relay", **task) as relay:
            relay.start()
            with socket.create_connection((host, relay.port), 60) as near, server.accept()[0] as far:
                far.settimeout(60)
                there, back = (threading.Thread(target=send_all, args=(end, data)) for end in (near, far))
                start = time.monotonic()
                there.start()
                back.start()
                first = far.recv(1)
                assert time.monotonic() - start >= delay_s
                assert first + read_all(far) == data
                assert read_all(near) == data
                there.join()
                back.join()
            with socket.create_connection((host, relay.port), 60) as near, server.accept()[0] as far:
                far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                far.close()
                assert near.recv(1) == b""  # a reset comes as an end


def send_all(end: socket.socket, data: bytes) -> None:
    end.sendall(data)
    end.shutdown(socket.SHUT_WR)


def read_all(end: socket.socket) -> bytes:
    return b"".join(iter(lambda: end.recv(1 << 20), b""))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--routes=fast"], "'fast' is none of direct, tiered, tiered-unix, echo"),
        (["--hosts=there"], "'there' is none of auto, namespaces, loopback"),
        (["--nodes=1000"], "at most 4096 ranks"),
        (["--nodes=four"], "--nodes=four: a whole number"),
        (["--many=8"], "--many=8: two whole numbers, as in 4x8"),
        (["--many=2000x10"], "at most 18000 ranks"),
        (["--many=8x2", "--fanout=8"], "fewer than the 8 nodes"),
        (["--tree=20000x1"], "at most 18000 proxies"),
        (["--tree=8x2", "--fanout=8"], "fewer than the 8 proxies"),
        (["--delay=-1"], "a number of milliseconds"),
        (["--closed=tls", "--routes=direct"], "--closed is about the route tiered"),
        (["--limit=0"], "a number of seconds from 1"),
        (["--repeats=0"], "--repeats=0: a whole number"),
    ],
)
def test_wrong_arguments_are_refused(capsys, arguments, said) -> None:
    assert tools.main(["bench", "tiered", *arguments]) == UsageError.exit_code
    assert said in capsys.readouterr().err
