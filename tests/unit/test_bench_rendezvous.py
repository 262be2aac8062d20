"""`rdzv bench rendezvous`: what it refuses, and how it prints what was measured. Real runs: tests/launcher."""

import dataclasses
import sys

import pytest

from launcher import tools
from launcher.bench import rendezvous
from launcher.bench.etcd_server import parse_metrics
from launcher.bench.rendezvous import Result, Settings
from launcher.bench.rendezvous_report import as_data, as_text, caption
from rdzv_plugins.errors import MissingDependency, UsageError

SETTINGS = Settings(
    nodes=(64,), targets=("parallel", "torch"), server="agent", etcd_data="/data", repeats=3, ttl=10, limit_s=60
)
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


@pytest.mark.parametrize(
    ("argument", "error"),
    {
        "--nodes=16,no": "--nodes=no: a whole number, at least 1",
        "--nodes=3": "--nodes=3: at least 4 nodes are needed",
        "--nodes=100000000": "100000000 nodes in one process need 400000100 open files",
        "--targets=ours": "--targets: 'ours' is none of parallel, etcd, torch",
        "--targets=": "--targets: '' is none of parallel, etcd, torch",
        "--server=there": "--server: 'there' is none of agent, process",
        "--etcd-data=/there": "--etcd-data=/there: not a directory that can be written to",
        "--repeats=0": "--repeats=0: a whole number",
        "--limit=0": "--limit=0: a number of seconds from 1",
        "--limit=nan": "--limit=nan: a number of seconds from 1",
        "--ttl=0.5": "--ttl=0.5: a number of seconds from 1",
    }.items(),
)  # fmt: skip
def test_wrong_argument_is_named(argument, error, capsys) -> None:
    assert tools.main(["bench", "rendezvous", argument]) == UsageError.exit_code
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "nodes", "repeats"),
    [
        ([], (16, 64, 256, 1024, 4096), 3),
        (["--quick"], (4, 16), 1),
        (["--quick", "--nodes=64,8,64", "--repeats=2"], (64, 8), 2),
    ],
)
def test_what_is_measured(arguments, nodes, repeats, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(rendezvous, "run", lambda settings, as_json: asked.append(settings) or 0)
    assert tools.main(["bench", "rendezvous", *arguments]) == 0
    assert (asked[0].nodes, asked[0].repeats, asked[0].targets) == (nodes, repeats, ())


def test_etcd_that_was_asked_for_and_is_not_installed_is_an_error(monkeypatch, tmp_path, capsys) -> None:
    command = ["bench", "rendezvous", "--quick", "--targets=parallel,etcd"]
    with monkeypatch.context() as changed:
        changed.setenv("PATH", str(tmp_path))
        assert tools.main(command) == MissingDependency.exit_code
    said = capsys.readouterr().err
    assert "--targets=etcd: the program etcd is not installed" in said
    assert "apt-get install etcd-server" in said

    (tmp_path / "etcd").write_text("#!/bin/sh\n")
    (tmp_path / "etcd").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "etcd3", None)
    assert tools.main(command) == MissingDependency.exit_code
    said = capsys.readouterr().err
    assert "--targets=etcd: backend etcd is not installed: no module named etcd3" in said
    assert "pip install 'rdzv-plugins[etcd]'" in said


def a_round(seconds, requests, per_node, known_s=None, syncs=0) -> dict[str, object]:
    return {
        "seconds": seconds,
        "known_s": known_s,
        "requests": requests,
        "per_node": per_node,
        "cpu_s": 2 * seconds,
        "server_cpu_s": 0.1,
        "syncs": syncs,
        "sync_s": syncs / 100,
    }


def a_sample(join, loss=None, close=None, idle=None, unfinished="", server_peak_mib=None) -> dict[str, object]:
    return {
        "join": join,
        "loss": loss,
        "close": close,
        "idle": idle,
        "signs": None if idle is None else 192,
        "peak_mib": 250.0,
        "grown_mib": 25.0,
        "unfinished": unfinished,
        "server_peak_mib": server_peak_mib,
    }


def lines_of(data) -> list[str]:
    return [line.strip() for line in as_text(data).splitlines()]


def test_figures_and_what_goes_beyond_the_plain_nodes() -> None:
    plain = {"open_session": 1, "put": 3}
    parallel = [
        a_sample(
            a_round(0.5, {"open_session": 64, "put": 198}, plain), a_round(0.2, {"put": 130}, {"put": 2}), idle={}
        ),
        a_sample(a_round(0.1, {"open_session": 64, "put": 199}, plain), a_round(0.4, {"put": 130}, {"put": 2})),
        a_sample(a_round(0.3, {"open_session": 64, "put": 200, "list": 1}, plain), a_round(0.3, {}, {})),
    ]
    torch = [a_sample(a_round(1.5, {"get": 128}, {"get": 2.0}), idle={"compare_set": 70}, unfinished="7 of 63")]
    data = as_data(Result(64, {"parallel": parallel, "torch": torch}))
    join = data["targets"]["parallel"]["join"]
    assert (join["seconds"]["median"], join["seconds"]["samples"]) == (0.3, [0.5, 0.1, 0.3])
    assert (join["per_node"], join["beyond"]) == (plain, {"put": 8, "list": 1})
    assert data["targets"]["parallel"]["idle"] == {}
    assert data["targets"]["torch"]["loss"] is None
    assert data["ratios"] == {"parallel / torch": {"join": 0.2}}  # torch has no loss to compare with

    lines = lines_of(data)
    assert lines[0] == "64 nodes"
    assert any(line.startswith("parallel ") and "0.300 (0.100..0.500)" in line for line in lines)
    assert "requests, join: 1 open_session, 3 put; and 8 put, 1 list" in lines
    assert "requests, idle: 0; signs of life: 192" in lines
    assert "requests, idle: 70 compare_set" in lines
    assert "torch     did not finish: 7 of 63" in lines
    assert "parallel / torch: join 0.2" in lines


def test_figures_of_a_service_that_does_not_know_of_a_loss_at_once() -> None:
    plain = {"open_session": 1, "put": 3}
    etcd = [
        a_sample(
            a_round(2.0, {"LeaseGrant": 64, "Txn": 304}, plain, syncs=90),
            a_round(10.5, {"Txn": 130}, {"put": 2}, known_s=10.0),
            a_round(0.75, {"LeaseRevoke": 1, "Txn": 127}, {"put": 2}, known_s=0.25),
        ),
        a_sample(
            a_round(2.0, {"LeaseGrant": 64, "Txn": 304}, plain, syncs=100),
            a_round(9.0, {"Txn": 130}, {"put": 2}, known_s=8.75),
            a_round(0.75, {"LeaseRevoke": 1, "Txn": 127}, {"put": 2}, known_s=0.25),
        ),
    ]
    parallel = [a_sample(a_round(0.5, {"put": 192}, {"put": 3}), a_round(0.25, {"put": 130}, {"put": 2}))]
    data = as_data(Result(64, {"parallel": parallel, "etcd": etcd}))
    assert data["targets"]["etcd"]["loss"]["after_known_s"]["samples"] == [0.5, 0.25]
    assert data["targets"]["etcd"]["join"]["beyond"] is None  # its methods are not our requests
    assert data["ratios"] == {"etcd / parallel": {"join": 4.0, "loss once known": 1.5}}

    lines = lines_of(data)
    assert "loss: known after 9.375 (8.750..10.000) s, then 0.375 (0.250..0.500) s" in lines
    assert "closed: 0.750 (0.750..0.750) s, of which until known 0.250 (0.250..0.250) s" in lines
    assert "requests, join: 1 open_session, 3 put" in lines
    assert "counted by etcd, 5.75 a node: 64 LeaseGrant, 304 Txn" in lines
    assert "requests, close: 2 put" in lines
    assert "written to disk in the join: 100 times, 1.00 s" in lines


def test_what_was_not_measured_is_said() -> None:
    join = a_round(0.5, {"put": 8}, {"put": 2})
    samples = {"parallel": [a_sample(join, server_peak_mib=12.34)], "torch": []}
    text = as_text(as_data(Result(4, samples, {"torch": "it took too long"})))
    assert "torch     not measured: it took too long" in text
    assert "peak of the server's process: 12.3 MiB" in text


@pytest.mark.parametrize(("apart", "said"), [(True, "never ask a name server"), (False, "NOT allowed")])
def test_caption_says_where_torchs_names_come_from(apart, said) -> None:
    text = caption(SETTINGS, names_from_hosts=apart)
    assert said in text
    assert "in 30 s after the join" in text
    assert "etcd in a process of its own" not in text  # it is not measured


def test_caption_says_where_etcds_data_is() -> None:
    text = caption(dataclasses.replace(SETTINGS, targets=("etcd",)), names_from_hosts=False)
    assert "whose data is in /data" in text
    assert "NOT allowed" not in text  # that is about torch


def test_target_that_is_too_slow_is_not_asked_for_more(monkeypatch) -> None:
    def took(seconds: float, unfinished: str = "") -> dict[str, object]:
        return a_sample(a_round(seconds, {}, {}), unfinished=unfinished)

    runs = []

    def run(target, nodes, settings, prefix, *, idle):
        runs.append((target, nodes, tuple(prefix), idle))
        return took(21.0) if target == "parallel" else took(1.0, "3 of 16 nodes had joined")

    monkeypatch.setattr(rendezvous, "_run", run)
    given_up: dict[str, str] = {}
    small = rendezvous._measure(16, SETTINGS, ["apart"], given_up)
    large = rendezvous._measure(64, SETTINGS, ["apart"], given_up)
    assert runs == [("parallel", 16, (), True), ("torch", 16, ("apart",), True), ("parallel", 64, (), True)]
    assert (small.skipped, large.skipped) == ({}, {"torch": "3 of 16 nodes had joined, with 16 nodes"})


def test_requests_of_etcd_are_counted_by_method_and_signs_of_life_apart() -> None:
    metrics = parse_metrics(METRICS)
    assert metrics.requests == {"Txn": 1234567, "Watch": 9}
    assert (metrics.keep_alives, metrics.syncs, metrics.sync_s) == (7, 6, 0.25)
