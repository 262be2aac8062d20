"""`rdzv bench rendezvous` runs, and counts what the design promises: a constant for each node, 0 when idle."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from kits.bench.bench_kit import Done, bench, find, install, started, with_openssl
from kits.bench.etcd_needed import etcd_installed, needs_etcd  # noqa: F401
from kits.launcher.harness import wait_until

from rdzv_launcher.bench.method.results import Result, read_result
from rdzv_launcher.bench.processes.hosts import Machine, may_have_namespaces
from rdzv_launcher.bench.processes.parts import Part
from rdzv_launcher.tools import cli as tools
from rdzv_plugins.errors import RdzvError

pytestmark = pytest.mark.thorough

NODES, FEWER = (5, 16, 64), (5, 64)
"""Of 5, one goes in the end, and one may lead and one be rank 0, who ask for more: so plain nodes are left."""
PER_NODE = {
    "join": {"open_session": 1, "watch": 2, "put": 3},
    "loss": {"put": 2},
}
FOR_THE_JOB = 16
"""The leader's and the first node's own, at most; besides, each node may have tried to lead."""
STRANGER = Path(__file__).parents[2] / "examples" / "rdzv-file"
QUICK = ("rendezvous", "--quick", "--json")
ALONE = (*QUICK, "--references=none")


@pytest.fixture
def measured(capfd, tmp_path):
    """The result of a benchmark, run in this process."""

    def run(*arguments: str) -> Result:
        assert tools.main(["bench", *arguments]) == 0
        file = tmp_path / "result.jsonl"
        file.write_text(capfd.readouterr().out)
        return read_result(file)

    return run


def runs_of(result: Result, target: str) -> dict[int, dict]:
    """The one run with each number of nodes, in which everything has finished."""
    found = {}
    for case in result.details:
        (sample,) = case["targets"][target]
        assert sample["unfinished"] == ""
        found[case["nodes"]] = sample
    return found


@pytest.mark.parametrize(
    ("server", "counts", "flags"),
    [("agent", NODES, ()), ("process", FEWER, ("--simulate", "--processes=2", "--hosts=loopback"))],
)
def test_requests_of_a_node_are_the_same_for_every_number_of_nodes(measured, server, counts, flags) -> None:
    nodes = f"--nodes={','.join(map(str, counts))}"
    result = measured(*ALONE, "--backends=parallel", nodes, f"--server={server}", *flags)
    runs = runs_of(result, "parallel")
    assert [*runs] == [*counts]
    for nodes, run in runs.items():
        case = f"{nodes} nodes"
        assert run["idle"]["asked"] == run["idle"]["served"] == {}
        assert run["close"] is None  # it knew of the loss at once
        assert (run["join"]["apart_cpu_s"] > 0) == (server == "process")
        for phase in ("join", "loss"):
            expected = PER_NODE[phase]
            assert run[phase]["per_node"] == expected, (nodes, phase)
            assert find(result, case, "parallel", f"requests_{phase}").samples == (sum(expected.values()),)
            assert find(result, case, "parallel", phase).samples == (run[phase]["seconds"],)
            assert run[phase]["seconds"] > 0
            for name, count in run[phase]["served"].items():  # counted by the server
                least = (nodes if phase == "join" else nodes - 1) * expected.get(name, 0)
                most = least + FOR_THE_JOB + (nodes if (name, phase) == ("put", "join") else 0)
                assert least <= count <= most, (nodes, phase, name)
        assert find(result, case, "parallel", "idle").samples == (0,)
        assert find(result, case, "parallel", "cpu_per_request").samples[0] > 0


@needs_etcd
def test_requests_over_etcd_are_the_same_for_every_number_of_nodes(measured, tmp_path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    flags = ("--simulate", "--processes=2", "--hosts=loopback", "--ttl=15", f"--etcd-data={data}")
    runs = runs_of(measured(*ALONE, "--backends=etcd", f"--nodes={','.join(map(str, FEWER))}", *flags), "etcd")
    assert [*runs] == [*FEWER]
    assert [*data.iterdir()] == []
    for nodes, run in runs.items():
        assert run["idle"]["asked"] == run["idle"]["served"] == {}
        assert run["idle"]["signs"] >= nodes  # each lives
        for phase, expected in PER_NODE.items():
            asked_each = run[phase]["per_node"]
            assert asked_each.keys() == expected.keys()
            # a round may be formed twice, with one put more or two, where a node comes late on a busy machine
            for name, count in expected.items():
                assert count <= asked_each[name] <= count + 2 * (name == "put"), (nodes, phase)
        joined = run["join"]["served"]
        for method, times in {"Watch": 2, "LeaseGrant": 1, "Txn": 4}.items():  # counted by etcd
            attempts = 2 * nodes  # to lead, and to be the first
            assert times * nodes <= joined[method] <= times * nodes + attempts + FOR_THE_JOB, (nodes, method)
        asked, there = sum(run["loss"]["served"].values()), nodes - 1
        assert 2 * there <= asked <= 4 * there + FOR_THE_JOB, nodes
        assert run["close"] is None  # the host of the lost node has told the others, long before the lease has ended
        assert run["join"]["service_cpu_s"] == run["join"]["apart_cpu_s"] > 0
        assert run["join"]["syncs"] > 0


def test_all_that_are_installed_are_measured_beside_torchs_own(measured, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without etcd
    heartbeats = "--rdzv-conf=c10d=keep_alive_interval=0.5,keep_alive_max_attempt=20"
    result = measured(*QUICK, "--nodes=4", heartbeats)
    joins = {point.target: point for point in result.points if point.figure == "join"}
    assert [*joins] == ["static", "c10d", "parallel", "tiered", "etcd", "torch-c10d", "torch-static"]
    assert joins.pop("etcd").unfinished == "the program etcd is not installed"
    assert all(len(point.samples) == 1 and point.samples[0] > 0 and not point.unfinished for point in joins.values())
    assert {name for name, point in joins.items() if point.reference} == {"torch-c10d", "torch-static"}
    losses = {point.target: point for point in result.points if point.figure == "loss"}
    for name in ("static", "torch-static"):
        assert (losses[name].samples, losses[name].unfinished) == ((), "not elastic: it has no further round")
    for name in ("c10d", "parallel", "tiered", "torch-c10d"):
        assert len(losses[name].samples) == 1, losses[name]
        # torch's last call, and the time without a sign of life, are of seconds
        assert losses[name].samples[0] > (1 if "c10d" in name else 0)
    (case,) = result.details
    ((torch,), (ours,)) = (case["targets"][name] for name in ("torch-c10d", "c10d"))
    assert torch["loss"]["asked"]["compare_set"] >= 3  # each survivor has joined again
    assert ours["loss"]["asked"]["set_state"] >= 3
    assert torch["idle"]["asked"]["compare_set"] >= 4  # a heartbeat is a write
    assert {(each.target, each.reference) for each in result.ratios if each.figure == "join"} >= {
        ("parallel", "torch-c10d"),
        ("tiered", "torch-static"),
    }


@with_openssl
def test_closed_jobs_are_measured_beside_open_ones(measured) -> None:
    ways = ("tiered", "tiered, token", "tiered, tls", "tiered, token+tls")
    result = measured(*ALONE, "--backends=tiered", "--nodes=4", "--closed=token,tls,token+tls")
    joins = {point.target: point.samples for point in result.points if point.figure == "join"}
    assert [*joins] == [*ways]
    assert all(len(samples) == 1 and samples[0] > 0 for samples in joins.values())


def test_backend_of_a_stranger_is_measured_by_its_name(tmp_path) -> None:
    info = tmp_path / "site" / "rdzv_file-7.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rdzv-file\nVersion: 7.5\n")
    (info / "entry_points.txt").write_text(
        "[rdzv_plugins]\nfile = rdzv_file\n\n[rdzv_plugins.harnesses]\nfile = rdzv_file.conformance:FileHarness\n"
    )
    conf = "--rdzv-conf=file=keep_alive_interval=0.5,keep_alive_max_attempt=20,fsync=false"
    result = bench(*ALONE, "--backends=file", conf, "--nodes=4", sites=(info.parent, STRANGER / "src")).result()
    assert result.manifest["versions"]["rdzv-file"] == "7.5"
    assert result.manifest["options"]["backends"] == ["file"]
    (run,) = runs_of(result, "file").values()
    for phase, writers in (("join", 4), ("loss", 3)):
        assert find(result, "4 nodes", "file", phase).samples[0] > 0
        assert find(result, "4 nodes", "file", f"requests_{phase}").samples[0] >= 1
        assert run[phase]["asked"]["set_state"] >= writers
    delayed = bench(*ALONE, "--backends=file", "--delay=5", "--nodes=4", sites=(info.parent, STRANGER / "src"))
    assert "no relay can stand in front of it" in find(delayed.result(), "4 nodes", "file", "join").unfinished


@pytest.fixture
def odd(tmp_path) -> Path:
    return install(tmp_path, "odd_backends", name="odd", harness="OddHarness")


def test_handler_of_its_own_is_asked_whether_its_node_is_to_join_again(odd) -> None:
    result = bench(*ALONE, "--backends=odd", "--nodes=5", sites=(odd,)).result()
    assert find(result, "5 nodes", "odd", "join").samples[0] > 0
    assert find(result, "5 nodes", "odd", "loss").samples[0] > 0
    assert find(result, "5 nodes", "odd", "requests_join").unfinished == "not known: it is a handler of its own"


def test_backend_that_gives_up_is_a_result_and_the_others_are_measured(odd) -> None:
    flags = ("--rdzv-conf=odd=how=refuses", "--nodes=4,5")
    result = bench(*ALONE, "--backends=odd,static", *flags, sites=(odd,)).result()
    first, second = (find(result, f"{nodes} nodes", "odd", "join") for nodes in (4, 5))
    assert first.unfinished == "a node gave up: no luck today"
    assert second.unfinished == f"{first.unfinished} (4 nodes)"  # it was not asked for more
    assert find(result, "5 nodes", "static", "join").samples[0] > 0


def test_harness_that_breaks_in_a_run_is_a_result_and_one_that_does_not_start_an_error(odd) -> None:
    flags = ("--backends=odd,static", "--nodes=4")
    done = bench(*ALONE, *flags, "--rdzv-conf=odd=how=nowhere", sites=(odd,))
    why = "its harness gives no endpoint: KeyError: 'no address'"
    assert find(done.result(), "4 nodes", "odd", "join").unfinished == why
    assert find(done.result(), "4 nodes", "static", "join").samples[0] > 0
    assert f"odd, 4 nodes: {why}" in done.stderr
    done = bench(*ALONE, *flags, "--rdzv-conf=odd=how=unstarted", sites=(odd,))
    assert done.returncode == RdzvError.exit_code
    assert "backend 'odd': its harness cannot be started: OSError: no room" in done.stderr
    assert "Traceback" not in done.stderr


def test_process_of_the_nodes_that_is_killed_is_a_result_and_the_others_are_measured(odd) -> None:
    flags = ("--backends=odd,static", "--rdzv-conf=odd=how=waits", "--limit=600", "--nodes=4")
    with started(*ALONE, *flags, sites=(odd,)) as run:

        def keeper() -> int:
            return next((pid for pid, line in sorted(run.left().items()) if "rendezvous.keeper" in line), 0)

        pid = wait_until(keeper, 100, lambda: f"only {run.left()}")
        os.kill(pid, signal.SIGKILL)
        out, err = run.communicate(timeout=200)
        assert run.left() == {}
    result = Done(run.returncode, out, err).result()
    why = find(result, "4 nodes", "odd", "join").unfinished
    assert why == "the process that keeps its nodes was ended by SIGKILL"
    assert find(result, "4 nodes", "static", "join").samples[0] > 0


def test_cpu_of_a_service_that_ran_before_is_in_that_of_the_nodes(measured) -> None:
    with Part("store", machine=asdict(Machine("127.0.0.1"))) as server:
        server.start()
        where = f"--rdzv-endpoint=parallel=127.0.0.1:{server.port}"
        result = measured(*ALONE, "--backends=parallel", where, "--nodes=4")
    join = runs_of(result, "parallel")[4]["join"]
    assert join["apart_cpu_s"] == join["service_cpu_s"] > 0
    (cpu_ms,) = find(result, "4 nodes", "parallel", "cpu_per_node").samples
    assert cpu_ms == pytest.approx(1000 * (join["nodes_cpu_s"] + join["service_cpu_s"]) / 4)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("breaks", "a node gave up: plug-in 'odd' .*KeyError.*: 'nobody knows'"),
        ("waits", "0 of 4 nodes had joined after 1 s"),
    ],
)
def test_backend_that_does_not_finish_is_a_result(odd, how, why) -> None:
    limit = "--limit=1" if how == "waits" else "--limit=60"
    result = bench(*ALONE, "--backends=odd", f"--rdzv-conf=odd=how={how}", "--nodes=4", limit, sites=(odd,)).result()
    assert re.fullmatch(why, find(result, "4 nodes", "odd", "join").unfinished)


def test_delay_is_in_the_join(measured) -> None:
    result = measured(*ALONE, "--backends=parallel,static", "--nodes=4", "--delay=700")
    (parallel, static) = (find(result, "4 nodes", name, "join") for name in ("parallel", "static"))
    assert min(parallel.samples) > 3 * 0.7  # greeting, watch and member key wait for each other
    assert min(static.samples) > 2 * 0.7
    # the leader hears of the loss at once; survivors are told, and answer
    assert min(find(result, "4 nodes", "parallel", "loss").samples) > 0.7


def test_hundreds_of_nodes_are_simulated_in_few_processes(measured) -> None:
    flags = ("--simulate", "--processes=2", "--hosts=loopback", "--nodes=200")
    result = measured(*ALONE, "--backends=parallel", *flags)
    (run,) = runs_of(result, "parallel").values()
    assert run["join"]["served"]["open_session"] == 200
    assert {phase: run[phase]["per_node"] for phase in ("join", "loss")} == {
        phase: PER_NODE[phase] for phase in ("join", "loss")
    }
    (case,) = result.details
    assert case["processes"] == 2 + 4


@needs_etcd
def test_nodes_on_hosts_of_their_own_reach_what_serves_them(measured) -> None:
    if not may_have_namespaces("auto"):
        pytest.skip("network namespaces are not allowed here")
    flags = ("--simulate", "--processes=1", "--nodes=5", "--hosts=namespaces", "--server=process", "--ttl=5")
    result = measured(*ALONE, "--backends=static,parallel,etcd", *flags)
    assert result.manifest["options"]["hosts"] == "namespaces"
    (case,) = result.details
    assert case["hosts"] == [f"10.77.1.{number}" for number in range(3, 8)]
    for name in ("static", "parallel", "etcd"):
        assert find(result, "5 nodes", name, "join").samples[0] > 0
    runs_of(result, "parallel")


def marked(mark: str) -> list[int]:
    """The processes that have it in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark.encode() in environment:
                found.append(int(entry.name))
    return found


def killed(mark: str, least: int, *arguments: str, sites: tuple[Path, ...] = ()) -> None:
    """Start a benchmark, kill it once so many processes are there, and wait until none is."""
    with started("rendezvous", "--nodes=6", "--references=none", *arguments, sites=sites) as run:
        wait_until(lambda: len(marked(mark)) >= least, 100, lambda: f"only {marked(mark)}")
        run.kill()
        wait_until(lambda: not marked(mark), 60, lambda: f"still there: {marked(mark)}")


@pytest.fixture
def mark(monkeypatch) -> Iterator[str]:
    """In the environment of whatever a benchmark starts from now on."""
    text = uuid.uuid4().hex
    monkeypatch.setenv("BENCH_MARK", text)
    yield text
    for pid in marked(text):  # the test has failed
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_benchmark_that_is_killed_leaves_no_process_and_no_file(odd, mark, tmp_path, monkeypatch) -> None:
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setenv("TMPDIR", str(files))
    # the benchmark, its guard, the harness's process, keeper, nodes, which would wait for a long time
    least = 1 + 1 + 1 + 1 + 6
    killed(mark, least, "--backends=odd", "--rdzv-conf=odd=how=waits", "--limit=600", sites=(odd,))
    assert [*files.iterdir()] == []


@needs_etcd
def test_benchmark_that_is_killed_leaves_no_etcd_and_no_data(tmp_path, mark) -> None:
    least = 1 + 1 + 1 + 1  # the benchmark, its guard, keeper, etcd
    killed(mark, least, "--backends=etcd", f"--etcd-data={tmp_path}")
    assert [*tmp_path.iterdir()] == []
