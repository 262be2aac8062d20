"""`rdzv bench rendezvous`: what it refuses, how nodes are spread, and what becomes of what was measured."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from rdzv_launcher.bench.method.turns import Turns
from rdzv_launcher.bench.rendezvous import bench as rendezvous
from rdzv_launcher.bench.rendezvous.figures import caption, notes, points
from rdzv_launcher.bench.rendezvous.run import layout, shape
from rdzv_launcher.bench.rendezvous.service import MeasuredService
from rdzv_launcher.bench.rendezvous.settings import RendezvousSettings
from rdzv_launcher.bench.rendezvous.targets import references
from rdzv_launcher.tools import cli as tools
from rdzv_plugins.errors import MissingDependency, UnknownBackend, UsageError
from rdzv_plugins.testing.services.counts import parse_etcd_metrics

pytestmark = pytest.mark.thorough

METRICS = """\
# HELP grpc_server_msg_received_total Total number of RPC stream messages received on the server.
# TYPE grpc_server_msg_received_total counter
grpc_server_msg_received_total{grpc_method="Compact",grpc_service="etcdserverpb.KV",grpc_type="unary"} 0
grpc_server_msg_received_total{grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 1.234567e+06
grpc_server_msg_received_total{grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"} 9
grpc_server_msg_received_total{grpc_method="Watch",grpc_service="grpc.health.v1.Health",grpc_type="server_stream"} 3
grpc_server_msg_received_total{grpc_method="LeaseKeepAlive",grpc_service="etcdserverpb.Lease",grpc_type="bidi_stream"} 7
grpc_server_started_total{grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 99
etcd_disk_wal_fsync_duration_seconds_bucket{le="0.001"} 6
etcd_disk_wal_fsync_duration_seconds_sum 0.25
etcd_disk_wal_fsync_duration_seconds_count 6
"""


def settings(**changes) -> RendezvousSettings:
    plain = RendezvousSettings(
        nodes=(8,), simulate="", processes=2, delay_ms=0, hosts="loopback", server="agent", etcd_data="/data",
        references="none", ttl=10, limit_s=60, repeats=3, quick=False,
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--nodes=16,no", "--nodes=no: a whole number, at least 1"),
        ("--nodes=3", "--nodes=3: at least 4 nodes are needed"),
        ("--nodes=300", "--nodes=300: 300 processes are too many for one machine (at most 256)\n  Add --simulate"),
        ("--simulate --hosts=loopback --nodes=100000000", "the process of the first node needs 3"),
        ("--simulate=native --hosts=loopback --nodes=100000000", "the process of the first node needs 200000202"),
        ("--simulate=native --server=process --nodes=100000000", "the process of the first node needs 100000202"),
        ("--simulate=fast", "--simulate: 'fast' is none of threads, native"),
        ("--processes=2", "--processes is for --simulate"),
        ("--simulate --processes=0", "--processes=0: a whole number"),
        ("--hosts=there", "--hosts: 'there' is none of auto, namespaces, loopback"),
        ("--server=there", "--server: 'there' is none of agent, process"),
        ("--server=process --backends=static", "--server=process is about parallel and tiered"),
        ("--references=torch", "--references: 'torch' is none of torch-c10d, torch-static, and not 'none'"),
        ("--etcd-data=/there", "--etcd-data=/there: not a directory that can be written to"),
        ("--closed=open", "--closed: 'open' is none of token, tls, token+tls"),
        ("--closed=tls --simulate=native", "--closed is for nodes and servers that are those of jobs"),
        ("--closed=tls --hosts=namespaces", "--closed is for hosts on loopback"),
        ("--repeats=0", "--repeats=0: a whole number"),
        ("--limit=0", "--limit=0: a number of seconds from 1"),
        ("--limit=nan", "--limit=nan: a number of seconds from 1"),
        ("--ttl=1.5", "--ttl=1.5: a number of seconds from 2"),
        ("--delay=-1", "--delay=-1: a number of milliseconds from 0 to 1000"),
        ("--delay=nan", "--delay=nan: a number of milliseconds from 0 to 1000"),
    ],
)
def test_wrong_argument_is_named(arguments, error, capsys) -> None:
    assert tools.main(["bench", "rendezvous", *arguments.split()]) == UsageError.exit_code
    said = capsys.readouterr().err
    assert all(each in said for each in error.split("\n  ")), said


def test_help_says_how_many_nodes_are_needed(capsys) -> None:
    with pytest.raises(SystemExit):
        tools.main(["bench", "rendezvous", "--help"])
    assert "each at least 4" in " ".join(capsys.readouterr().out.split())


def test_backend_that_is_not_installed_is_an_error(capsys) -> None:
    assert tools.main(["bench", "rendezvous", "--quick", "--backends=parallel,zoo"]) == UnknownBackend.exit_code
    assert "there is no rendezvous backend 'zoo'" in capsys.readouterr().err


def test_etcd_that_was_asked_for_and_is_not_installed_is_an_error(monkeypatch, tmp_path, capsys) -> None:
    command = ["bench", "rendezvous", "--quick", "--backends=parallel,etcd"]
    with monkeypatch.context() as changed:
        changed.setenv("PATH", str(tmp_path))
        assert tools.main(command) == MissingDependency.exit_code
    said = capsys.readouterr().err
    assert "the program etcd is not installed" in said
    assert "apt-get install etcd-server" in said

    (tmp_path / "etcd").write_text("#!/bin/sh\n")
    (tmp_path / "etcd").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "etcd3", None)
    assert tools.main(command) == MissingDependency.exit_code
    said = capsys.readouterr().err
    assert "backend 'etcd' needs module 'etcd3', which is not installed" in said
    assert "pip install 'rdzv-plugins[etcd]'" in said


@pytest.mark.parametrize(
    ("arguments", "nodes", "repeats"),
    [
        ([], (4, 16, 64), 3),
        (["--quick"], (4, 16), 1),
        (["--quick", "--nodes=64,8,64", "--repeats=2"], (64, 8), 2),
    ],
)
def test_what_is_measured(arguments, nodes, repeats, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(rendezvous, "run", lambda settings, args: asked.append((settings, args)) or 0)
    assert tools.main(["bench", "rendezvous", *arguments]) == 0
    ((found, args),) = asked
    assert (found.nodes, found.repeats, found.simulate, args.backends) == (nodes, repeats, "", None)
    assert found.references == "torch-c10d,torch-static"


@pytest.mark.parametrize(
    ("nodes", "changes", "groups"),
    [
        (4, {}, [[0], [1], [2], [3]]),
        (4, {"simulate": "threads"}, [[0], [1], [2], [3]]),
        (8, {"simulate": "threads"}, [[0, 1], [2, 3], [4], [5], [6], [7]]),
        (8, {"simulate": "threads", "processes": 9}, [[number] for number in range(8)]),
        (9, {"simulate": "threads", "processes": 1}, [[0, 1, 2, 3, 4], [5], [6], [7], [8]]),
        (8, {"simulate": "native"}, [[0], [1, 2, 3], [4, 5, 6], [7]]),
        (4, {"simulate": "native", "processes": 9}, [[0], [1], [2], [3]]),
    ],
)
def test_nodes_that_may_be_lost_have_a_process_of_their_own(nodes, changes, groups) -> None:
    assert [*map(list, layout(nodes, settings(**changes)))] == groups


@pytest.mark.parametrize("nodes", [4, 5, 11, 100, 1024, 4096])
@pytest.mark.parametrize("processes", [1, 2, 7, 64])
@pytest.mark.parametrize("how", ["threads", "native"])
def test_every_node_is_in_one_process(nodes, processes, how) -> None:
    asked = settings(simulate=how, processes=processes)
    groups = layout(nodes, asked)
    assert [number for group in groups for number in group] == [*range(nodes)]
    assert all(groups)
    assert len(groups) <= processes + 4
    assert shape(nodes, asked) == (len(groups), max(map(len, groups)))


def phase(seconds, **more) -> dict[str, object]:
    return {
        "seconds": seconds, "known_s": None, "per_node": None, "asked": None, "served": None, "nodes_cpu_s": 0.5,
        "first_cpu_s": None,
        "service_cpu_s": None, "apart_cpu_s": 0.0, "syncs": 0, "sync_s": 0.0,
    } | more  # fmt: skip


def sample(join, **more) -> dict[str, object]:
    return {"join": join, "loss": None, "close": None, "idle": None, "memory_mib": 16.0, "unfinished": ""} | more


def measured(*samples, unfinished="") -> dict[str, object]:
    """The points of torch-c10d, by figure."""
    (target,) = references("torch-c10d")
    turns = Turns({target.name: [*samples]}, {target.name: unfinished} if unfinished else {})
    return {point.figure: point for point in points("8 nodes", 8, [target], turns)}


def test_figures_of_a_backend_whose_requests_are_counted() -> None:
    asked = {"put": 24, "watch": 16}
    join = phase(
        0.5, per_node={"put": 3.0, "watch": 2.0}, asked=asked, served={"put": 50}, service_cpu_s=0.001, apart_cpu_s=0.3
    )
    loss = phase(0.25, per_node={"put": 2.0}, asked={"put": 14})
    idle = {"seconds": 15.0, "asked": {"put": 4}, "served": None, "signs": 9}
    found = measured(sample(join, loss=loss, idle=idle), sample(phase(0.75, nodes_cpu_s=0.7)))
    assert {point.reference for point in found.values()} == {True}
    assert {point.nodes for point in found.values()} == {8}
    assert {name: point.samples for name, point in found.items()} == {
        "join": (0.5, 0.75),
        "loss": (0.25,),
        "cpu_per_node": (100.0, 87.5),
        "requests_join": (5.0,),
        "requests_loss": (2.0,),
        "cpu_per_request": (20.0,),
        "memory_per_node": (2.0, 2.0),
        "idle": (16.0,),
    }
    assert {point.unfinished for point in found.values()} == {""}


def test_runs_after_one_whose_figure_is_not_known_are_left_out() -> None:
    """Else the second figure of one target would be divided by the second of another, which is of another turn."""
    runs = [
        sample(phase(0.5, per_node={"put": 3.0}, service_cpu_s=0.1, served={"put": 10})),
        sample(phase(0.6, per_node={"put": 3.0}), memory_mib=0.0),
        sample(phase(0.7, per_node={"put": 5.0}, service_cpu_s=0.2, served={"put": 10})),
    ]
    found = {name: point.samples for name, point in measured(*runs).items()}
    assert (found["join"], found["requests_join"]) == ((0.5, 0.6, 0.7), (3.0, 3.0, 5.0))
    assert (found["cpu_per_request"], found["memory_per_node"]) == ((10_000.0,), (2.0,))
    assert "cpu_per_request" not in measured(*runs[1:])


def test_cpu_of_nodes_alone_is_no_figure_where_their_service_does_not_tell() -> None:
    assert "cpu_per_node" not in measured(sample(phase(0.5, apart_cpu_s=None)))


@pytest.mark.parametrize(("apart", "cpu_s"), [(True, None), (False, 0.0)])
def test_cpu_of_a_service_whose_processes_nobody_knows_is_not_known_unless_it_is_in_a_node(apart, cpu_s) -> None:
    task = {"probe": "", "endpoint": ":0", "machine": {"address": "127.0.0.1"}, "pids": [], "apart": apart}
    assert MeasuredService(task).served().apart_s == cpu_s


def test_service_that_does_not_count_has_what_its_nodes_have_asked() -> None:
    found = measured(sample(phase(0.5, asked={"get_state": 10}, service_cpu_s=0.002)))
    assert found["cpu_per_request"].samples == (200.0,)


def test_loss_of_which_the_service_hears_late_is_told_apart() -> None:
    runs = [
        sample(phase(1.0), loss=phase(10.5, known_s=10.0), close=phase(0.75)),
        sample(phase(1.0), loss=phase(9.0, known_s=8.75), close=phase(0.25)),
    ]
    assert notes(Turns({"etcd": runs, "parallel": [sample(phase(1.0), loss=phase(0.2, known_s=0.1))]})) == [
        "etcd: the loss is known after 9.375 s, the next round there 0.375 s later; 0.500 s after an orderly end"
    ]


def test_loss_that_did_not_finish_is_said_beside_the_join() -> None:
    found = measured(sample(phase(0.5), unfinished="3 of 7 nodes had joined again after 60 s"))
    assert (found["join"].samples, found["join"].unfinished) == ((0.5,), "")
    assert (found["loss"].samples, found["loss"].unfinished) == ((), "3 of 7 nodes had joined again after 60 s")
    assert found["requests_join"].unfinished == "not known: it is a handler of its own"
    assert "idle" not in found


def test_target_that_gave_up_says_so() -> None:
    found = measured(unfinished="a node gave up: no luck")
    assert {name: point.samples for name, point in found.items()} == {"join": (), "loss": ()}
    assert {point.unfinished for point in found.values()} == {"a node gave up: no luck"}


def test_static_targets_have_no_further_round() -> None:
    (static,) = references("torch-static")
    found = {p.figure: p for p in points("8 nodes", 8, [static], Turns({"torch-static": [sample(phase(0.5))]}))}
    assert found["loss"].unfinished == "not elastic: it has no further round"
    assert "requests_loss" not in found


@pytest.mark.parametrize(
    ("changes", "apart", "said", "unsaid"),
    [
        ({}, True, "hosts file", "NOT allowed"),
        ({}, False, "NOT allowed", "relay"),
        ({"delay_ms": 2.5}, True, "a round trip takes 2.5 ms more", "threads of"),
        ({"simulate": "threads"}, True, "threads of 2 processes", "namespaces"),
        ({"simulate": "native"}, True, "simulated by the load generator in 2 processes", "threads of"),
        ({"hosts": "namespaces"}, True, "network namespaces", "on loopback"),
        ({"ttl": 4}, True, "the rest of the session's 4 s", "session's 10 s"),
    ],
)
def test_caption_says_what_is_measured_and_where(changes, apart, said, unsaid) -> None:
    text = caption(settings(**changes), alone=3, names_from_hosts=apart)
    assert said in text
    assert unsaid not in text


def test_requests_of_etcd_are_counted_by_method_and_signs_of_life_apart() -> None:
    metrics = parse_etcd_metrics(METRICS)
    assert metrics.requests == {"Txn": 1234567, "Watch": 9}
    assert (metrics.signs, metrics.syncs, metrics.sync_s) == (7, 6, 0.25)
