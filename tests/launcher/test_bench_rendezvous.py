"""`rdzv bench rendezvous` runs, and counts what the design promises: a constant for each node, 0 when idle."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from etcd_processes import require_programs
from harness import BIN, wait_until

from launcher import tools
from launcher.bench.etcd_server import EtcdServer, ask_metrics

NODES = (5, 16, 64)
"""Of 5, two go in the end, and one may lead and one be rank 0, who ask for more: so one plain node is left."""
PER_NODE = {
    "join": {"open_session": 1, "watch": 2, "put": 3},
    "loss": {"put": 2},
    "close": {"put": 2},
}
FOR_THE_JOB = 16
"""The leader's and the first node's own, at most; besides, each node may have tried to lead."""


@pytest.fixture
def etcd_installed() -> None:
    require_programs()


def measured(capfd, *arguments: str) -> list[dict]:
    assert tools.main(["bench", "rendezvous", "--quick", "--json", *arguments]) == 0
    return json.loads(capfd.readouterr().out)["cases"]


@pytest.mark.parametrize("server", ["agent", "process"])
def test_requests_of_a_node_are_the_same_for_every_number_of_nodes(capfd, server) -> None:
    nodes = f"--nodes={','.join(map(str, NODES))}"
    cases = measured(capfd, "--targets=parallel", nodes, "--ttl=2", f"--server={server}")
    assert [case["nodes"] for case in cases] == [*NODES]
    for case in cases:
        nodes, parallel = case["nodes"], case["targets"]["parallel"]
        assert (parallel["unfinished"], parallel["idle"], parallel["close"]) == (None, {}, None)
        for phase in ("join", "loss"):
            expected = PER_NODE[phase]
            assert parallel[phase]["per_node"] == expected, (nodes, phase)
            assert parallel[phase]["seconds"]["median"] > 0
            for name, count in parallel[phase]["requests"].items():  # counted by the server
                least = (nodes if phase == "join" else nodes - 1) * expected.get(name, 0)
                most = least + FOR_THE_JOB + (nodes if (name, phase) == ("put", "join") else 0)
                assert least <= count <= most, (nodes, phase, name)
        assert (parallel["server_peak_mib"] is not None) == (server == "process")


@pytest.mark.usefixtures("etcd_installed")
def test_requests_over_etcd_are_the_same_for_every_number_of_nodes(capfd) -> None:
    cases = measured(capfd, "--targets=etcd", f"--nodes={','.join(map(str, NODES))}", "--ttl=2")
    assert [case["nodes"] for case in cases] == [*NODES]
    for case in cases:
        nodes, etcd = case["nodes"], case["targets"]["etcd"]
        assert (etcd["unfinished"], etcd["idle"]) == (None, {})
        assert etcd["signs"] >= nodes  # each lives
        for phase, expected in PER_NODE.items():
            assert etcd[phase]["per_node"] == expected, (nodes, phase)
        joined = etcd["join"]["requests"]
        for method, times in {"Watch": 2, "LeaseGrant": 1, "Txn": 4}.items():  # counted by etcd
            attempts = 2 * nodes  # to lead, and to be the first
            assert times * nodes <= joined[method] <= times * nodes + attempts + FOR_THE_JOB, (nodes, method)
        for phase, there in (("loss", nodes - 1), ("close", nodes - 2)):
            asked = sum(etcd[phase]["requests"].values())
            assert 2 * there <= asked <= 2 * there + FOR_THE_JOB, (nodes, phase)
        # it learns of a loss when the lease ends, and of an orderly end at once
        assert etcd["loss"]["known_s"]["median"] > etcd["close"]["known_s"]["median"]
        assert etcd["join"]["server_cpu_s"]["median"] > 0
        assert etcd["join"]["syncs"] > 0
        assert etcd["server_peak_mib"]["median"] > 10


def test_all_targets_that_are_installed_are_measured_side_by_side(capfd, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without etcd
    (case,) = measured(capfd, "--nodes=4", "--ttl=1")
    assert [*case["targets"]] == ["parallel", "etcd", "torch"]
    etcd = case["targets"].pop("etcd")
    assert (etcd["runs"], etcd["skipped"]) == (0, "the program etcd is not installed")
    for target in case["targets"].values():
        assert target["unfinished"] is None
        assert target["join"]["seconds"]["median"] > 0
        assert target["loss"]["seconds"]["median"] > 0
    assert case["targets"]["torch"]["loss"]["requests"]["compare_set"] >= 3  # each survivor has joined again
    assert set(case["ratios"]) == {"parallel / torch"}
    assert set(case["ratios"]["parallel / torch"]) == {"join", "loss"}


def etcds(directory: Path) -> list[int]:
    """The processes whose command names it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(directory).encode() in command:
                found.append(int(entry.name))
    return found


def none_left(directory: Path) -> None:
    wait_until(lambda: not etcds(directory), 30, lambda: f"still there: {etcds(directory)}")


@pytest.mark.usefixtures("etcd_installed")
def test_etcd_serves_until_the_end_of_the_block_and_leaves_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://127.0.0.1:1")  # of somebody else's etcd
    with EtcdServer(str(tmp_path)) as server:
        server.wait_ready()
        assert ask_metrics(server.port).syncs > 0
        assert server.pid in etcds(tmp_path)
        assert [*tmp_path.glob("*/member/wal")]
    assert etcds(tmp_path) == []
    assert [*tmp_path.iterdir()] == []


def test_etcd_that_does_not_start_says_why(tmp_path, monkeypatch) -> None:
    (tmp_path / "etcd").write_text("#!/bin/sh\necho no luck today >&2\nexit 3\n")
    (tmp_path / "etcd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    data = tmp_path / "data"
    data.mkdir()
    with EtcdServer(str(data)) as server, pytest.raises(Exception, match=r"etcd did not start\n  \| no luck today"):
        server.wait_ready()
    assert [*data.iterdir()] == []


@pytest.mark.usefixtures("etcd_installed")
def test_etcd_ends_with_the_process_that_watches_over_it(tmp_path) -> None:
    with EtcdServer(str(tmp_path)) as server:
        server.wait_ready()
        (watcher,) = set(etcds(tmp_path)) - {server.pid}
        os.kill(watcher, signal.SIGKILL)
        none_left(tmp_path)


@pytest.mark.usefixtures("etcd_installed")
def test_benchmark_that_is_killed_leaves_no_etcd_and_no_data(tmp_path) -> None:
    command = [BIN / "rdzv", "bench", "rendezvous", "--targets=etcd", "--nodes=4", f"--etcd-data={tmp_path}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as benchmark:
        try:
            wait_until(lambda: [*tmp_path.glob("*/member/wal")], 60, lambda: "etcd has not started")
        finally:
            benchmark.kill()
    none_left(tmp_path)
    assert [*tmp_path.iterdir()] == []
