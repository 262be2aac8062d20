"""`rdzv bench rendezvous` runs, and counts what the design promises: a constant for each node, 0 when idle."""

from __future__ import annotations

import os
import re
import signal
from datetime import timedelta
from pathlib import Path

import pytest
from kits.bench.bench_kit import Done, bench, find, odd_backends, started
from kits.etcd.etcd_processes import require_programs
from kits.eventually import eventually

from rdzv_launcher.bench.backends import TORCH_C10D
from rdzv_launcher.bench.children import Child
from rdzv_launcher.bench.nodes import TorchNode, wrong_places
from rdzv_launcher.bench.rendezvous import layout
from rdzv_launcher.bench.results import Result
from rdzv_launcher.bench.store import store_server
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.testing.builtin import parse_etcd_metrics
from rdzv_plugins.testing.harness import Harness, free_port

pytestmark = pytest.mark.thorough

PER_NODE = {"join": {"open_session": 1, "watch": 2, "put": 3}, "loss": {"put": 2}}
FOR_THE_JOB = 16
"""The leader's and the first node's own, at most; besides, each node may have tried to lead."""
ALONE = ("rendezvous", "--quick", "--json", "--references=none")
SIMULATED = ("--simulate=2",)


def measured(*arguments: str) -> Result:
    return bench(*arguments).result()


def runs_of(result: Result, target: str) -> dict[int, dict]:
    """The one run with each number of nodes, in which everything has finished."""
    found = {}
    for case in result.details:
        (sample,) = case["targets"][target]
        assert sample["unfinished"] == ""
        found[case["nodes"]] = sample
    return found


def test_requests_of_a_node_are_the_same_for_every_number_of_nodes() -> None:
    """Of 5, one goes in the end, and one may lead and one be rank 0, who ask for more: so plain nodes are left."""
    result = measured(*ALONE, "--backends=parallel", "--nodes=5,64,200", *SIMULATED)
    runs = runs_of(result, "parallel")
    assert [*runs] == [5, 64, 200]
    for nodes, run in runs.items():
        for phase, expected in PER_NODE.items():
            assert run[phase]["per_node"] == expected, (nodes, phase)
            assert find(result, f"{nodes} nodes", "parallel", phase).samples == (run[phase]["seconds"],)
            for name, count in run[phase]["served"].items():  # counted by the server
                least = (nodes if phase == "join" else nodes - 1) * expected.get(name, 0)
                most = least + FOR_THE_JOB + (nodes if (name, phase) == ("put", "join") else 0)
                assert least <= count <= most, (nodes, phase, name)


def test_requests_over_etcd_are_the_same_for_every_number_of_nodes(tmp_path, monkeypatch) -> None:
    require_programs()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    runs = runs_of(measured(*ALONE, "--backends=etcd", *SIMULATED, "--ttl=15", "--nodes=5,64"), "etcd")
    assert [*tmp_path.iterdir()] == []
    for nodes, run in runs.items():
        for phase, expected in PER_NODE.items():
            asked_each = run[phase]["per_node"]
            assert asked_each.keys() == expected.keys()
            # a round may be formed twice, with one put more or two, where a node comes late on a busy machine
            for name, count in expected.items():
                assert count <= asked_each[name] <= count + 2 * (name == "put"), (nodes, phase)
        for method, times in {"Watch": 2, "LeaseGrant": 1, "Txn": 4}.items():  # counted by etcd
            attempts = 2 * nodes  # to lead, and to be the first
            served = run["join"]["served"][method]
            assert times * nodes <= served <= times * nodes + attempts + FOR_THE_JOB, (nodes, method)
        assert run["loss"]["seconds"] < 15  # the host of the lost node has told the others before the lease has ended
        assert run["join"]["service_cpu_s"] == run["join"]["apart_cpu_s"] > 0


def test_all_that_are_installed_are_measured_beside_torchs_own(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without etcd
    heartbeats = "--rdzv-conf=c10d=keep_alive_interval=0.5,keep_alive_max_attempt=20"
    result = measured("rendezvous", "--quick", "--json", "--nodes=4", heartbeats)
    joins, losses = ({p.target: p for p in result.points if p.figure == each} for each in ("join", "loss"))
    assert [*joins] == ["static", "c10d", "parallel", "tiered", "torch-c10d", "torch-static"]
    assert all(len(point.samples) == 1 and point.samples[0] > 0 and not point.unfinished for point in joins.values())
    assert {name for name, point in joins.items() if point.reference} == {"torch-c10d", "torch-static"}
    for name in ("static", "torch-static"):
        assert (losses[name].samples, losses[name].unfinished) == ((), "not elastic: it has no further round")
    for name in ("c10d", "parallel", "tiered", "torch-c10d"):
        # torch's last call, and the time without a sign of life, are of seconds
        assert losses[name].samples[0] > (1 if "c10d" in name else 0)
    (case,) = result.details
    ((torch,), (ours,)) = (case["targets"][name] for name in ("torch-c10d", "c10d"))
    assert torch["loss"]["asked"]["compare_set"] >= 3  # each survivor has joined again
    assert ours["loss"]["asked"]["set_state"] >= 3


def test_closed_job_is_measured_and_its_service_not_asked(tmp_path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef" * 4)
    (tmp_path / "token").chmod(0o600)
    closed = f"--rdzv-conf=tiered=token_file={tmp_path / 'token'}"
    (run,) = runs_of(measured(*ALONE, "--backends=tiered", "--nodes=4", closed), "tiered").values()
    assert run["join"]["seconds"] > 0
    assert "served" not in run["join"]


def test_handler_of_its_own_is_asked_whether_its_node_is_to_join_again(tmp_path) -> None:
    result = bench(*ALONE, "--backends=odd", "--nodes=5", sites=odd_backends(tmp_path)).result()
    assert find(result, "5 nodes", "odd", "join").samples[0] > 0
    assert find(result, "5 nodes", "odd", "loss").samples[0] > 0
    assert "handler of its own" in find(result, "5 nodes", "odd", "requests_join").unfinished


@pytest.mark.parametrize(
    ("how", "limit_s", "why"),
    [
        ("refuses", 60, "a node gave up: no luck today"),
        ("breaks", 60, "a node gave up: plug-in 'odd' .*KeyError.*: 'nobody knows'"),
        ("waits", 1, "0 of 4 nodes had joined after 1 s"),
        ("nowhere", 60, "its harness gave no endpoint: KeyError: 'no address'"),
    ],
)
def test_backend_that_gives_up_is_a_result_and_the_others_are_measured(tmp_path, how, limit_s, why) -> None:
    flags = ("--backends=odd,prompt", f"--rdzv-conf=odd=how={how}", "--nodes=4,5", f"--limit={limit_s}")
    result = bench(*ALONE, *flags, sites=odd_backends(tmp_path)).result()
    first, second = (find(result, f"{nodes} nodes", "odd", "join") for nodes in (4, 5))
    assert re.fullmatch(why, first.unfinished)
    assert second.unfinished == f"{first.unfinished} (4 nodes)"  # it was not asked for more
    assert how == "waits" or find(result, "5 nodes", "prompt", "join").samples[0] > 0


def test_harness_that_does_not_start_is_an_error(tmp_path) -> None:
    flags = ("--backends=odd,prompt", "--nodes=4", "--rdzv-conf=odd=how=unstarted")
    done = bench(*ALONE, *flags, sites=odd_backends(tmp_path))
    assert done.returncode == RdzvError.exit_code
    assert "'odd': its harness could not be started: OSError: no room" in done.stderr
    assert "Traceback" not in done.stderr


def children_of(pid: int) -> int:
    return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def test_killed_supervisor_of_nodes_is_a_result_and_leaves_no_process_and_no_file(tmp_path, monkeypatch) -> None:
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setenv("TMPDIR", str(files))
    flags = ("--backends=odd,prompt", "--rdzv-conf=odd=how=waits", "--limit=600", "--nodes=6")
    with started(*ALONE, *flags, sites=odd_backends(tmp_path)) as run:
        least = 1 + 1 + 1 + 1 + 6  # the benchmark, its guard, the harness's process, supervisor, nodes
        eventually(lambda: len(run.left()) >= least, lambda: f"only {run.left()}")
        os.kill(next(pid for pid in run.left() if children_of(pid) >= 6), signal.SIGKILL)
        out, err = run.communicate(timeout=200)
        eventually(lambda: not run.left(), lambda: f"still there: {run.left()}")
    assert [*files.iterdir()] == []
    result = Done(run.returncode, out, err).result()
    assert "ended by SIGKILL" in find(result, "6 nodes", "odd", "join").unfinished
    assert find(result, "6 nodes", "prompt", "join").samples[0] > 0


def test_benchmark_that_is_killed_leaves_no_etcd_and_no_data(tmp_path, monkeypatch) -> None:
    require_programs()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with started("rendezvous", "--nodes=6", "--references=none", "--backends=etcd") as run:
        eventually(lambda: len(run.left()) >= 4, lambda: f"only {run.left()}")  # and its guard, supervisor, etcd
        run.kill()
        eventually(lambda: not run.left(), lambda: f"still there: {run.left()}")
    assert [*tmp_path.iterdir()] == []


def test_cpu_of_a_service_that_ran_before_is_in_that_of_the_nodes() -> None:
    with Child("the server", store_server) as server:
        where = f"--rdzv-endpoint=parallel=127.0.0.1:{server.answer()}"
        result = measured(*ALONE, "--backends=parallel", where, "--nodes=4")
    join = runs_of(result, "parallel")[4]["join"]
    assert join["apart_cpu_s"] == join["service_cpu_s"] > 0
    (cpu_ms,) = find(result, "4 nodes", "parallel", "cpu_per_node").samples
    assert cpu_ms == pytest.approx(1000 * (join["nodes_cpu_s"] + join["service_cpu_s"]) / 4)


def test_requests_of_torch_s_nodes_are_counted_and_their_last_call_is_shortened() -> None:
    """What the benchmark touches inside of torch is there, and does what it is taken to do."""
    harness = Harness()
    harness.backend = TORCH_C10D
    request = harness.request(f"127.0.0.1:{free_port()}", run_id="alone", local_addr="127.0.0.1")
    node = TorchNode(0, request, 60)
    try:
        assert node.facts()["asked"] == {}
        node.join()
        assert node.rank == 0
        assert node.facts()["asked"].keys() == {"get", "compare_set"}
        node.again()
        assert node.rendezvous.settings.timeout.last_call == timedelta(seconds=1)
        assert node.rendezvous.settings.timeout.join == timedelta(seconds=60)
    finally:
        node.rendezvous.shutdown()


# how nodes are spread, and what is read


def test_nodes_that_may_be_lost_have_a_process_of_their_own() -> None:
    assert [*map(list, layout(4, 0))] == [[0], [1], [2], [3]]
    assert [*map(list, layout(8, 2))] == [[0, 1], [2, 3], [4], [5], [6], [7]]
    assert [*map(list, layout(9, 1))] == [[0, 1, 2, 3, 4], [5], [6], [7], [8]]
    assert [*map(list, layout(8, 9))] == [[number] for number in range(8)]


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, ""),
        ({"rank": 0}, "rank 0 is that of 2 nodes, node 0 is one of them"),
        ({"rank": 2}, "node 5 has rank 2 in a round of 2 nodes"),
        ({"world": 3}, "node 5 was told a world of 3 nodes, of which there are 2"),
        ({"round": 5}, "the nodes are in rounds 4, 5"),
    ],
)
def test_places_that_do_not_fit_together_are_wrong(changes, wrong) -> None:
    place = {"rank": 0, "world": 2, "round": 4}
    assert wrong_places({0: place, 5: {**place, "rank": 1, **changes}}) == wrong


def test_requests_of_etcd_are_counted_by_method_and_signs_of_life_apart() -> None:
    def received(method: str, service: str, count: str) -> str:
        return f'grpc_server_msg_received_total{{grpc_method="{method}",grpc_service="{service}"}} {count}\n'

    metrics = parse_etcd_metrics(
        "# TYPE grpc_server_msg_received_total counter\n"
        + received("Compact", "etcdserverpb.KV", "0")
        + received("Txn", "etcdserverpb.KV", "1.234567e+06")
        + received("Watch", "etcdserverpb.Watch", "9")
        + received("Watch", "grpc.health.v1.Health", "3")
        + received("LeaseKeepAlive", "etcdserverpb.Lease", "7")
        + 'grpc_server_started_total{grpc_method="Txn",grpc_service="etcdserverpb.KV"} 99\n'
        + "etcd_disk_wal_fsync_duration_seconds_sum 0.25\netcd_disk_wal_fsync_duration_seconds_count 6\n"
    )
    assert metrics.requests == {"Txn": 1234567, "Watch": 9}
    assert (metrics.signs, metrics.syncs, metrics.sync_s) == (7, 6, 0.25)
