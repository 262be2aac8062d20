"""Two agents by two workers over gloo, by rdzv-run and torchrun; and nodes that do not belong together are told so.

With a worker each, and given ranks, by every backend: the conformance suite's launches. "Told at once" is that the
message is not the one of a time-out, which is long here.
"""

from __future__ import annotations

import contextlib
import re

import pytest
from kits.eventually import eventually
from kits.launcher.harness import AgentProcess, Cluster, error_of

from rdzv_plugins.errors import RdzvError, RendezvousFailed, SettingsDiffer
from rdzv_plugins.interfaces import Request, RunStatus
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.create import with_options
from rdzv_plugins.testing.launched import outputs

LONG = "timeout=500"
"""Longer than a test may take."""
PATIENCE_S = 60


def check_world(reports: list[dict[str, str]], nodes: int, nproc: int) -> str:
    """All ranks, sizes and addresses of a round are right; returns the port of its store."""
    world = nodes * nproc
    shared = {"WORLD_SIZE": world, "ROLE_WORLD_SIZE": world, "LOCAL_WORLD_SIZE": nproc, "GROUP_WORLD_SIZE": nodes}
    for rank, report in enumerate(sorted(reports, key=lambda each: int(each["RANK"]))):
        own = {"RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": rank % nproc, "GROUP_RANK": rank // nproc}
        expected = {name: str(value) for name, value in (shared | own).items()} | {"MASTER_ADDR": "127.0.0.1"}
        assert {name: report[name] for name in expected} == expected
        assert report["SUM"] == sum(range(world))
    assert len(reports) == world
    (port,) = {report["MASTER_PORT"] for report in reports}
    return port


@pytest.mark.parametrize("backend", ["static", "c10d", "parallel"])
def test_two_agents_by_two_workers_and_a_crash_restarts_all_in_one_fresh_round(cluster: Cluster, backend: str) -> None:
    options = ["--rdzv-id=job7"]
    agents = cluster.pair("report.py", "crash", 1, 3, backend=backend, nproc=2, restarts=1, options=options)
    assert [agent.wait() for agent in agents] == [0, 0], outputs(agents)
    assert [len(agent.reports()) for agent in agents] == [4, 4]
    rounds = [[r for agent in agents for r in agent.reports()[first : first + 2]] for first in (0, 2)]
    assert {report["TORCHELASTIC_RUN_ID"] for reports in rounds for report in reports} == {"job7"}
    assert len({check_world(reports, 2, 2) for reports in rounds}) == 2, "each round has a store of its own"
    assert cluster.processes() == {}


@pytest.mark.thorough
def test_two_nodes_meet_in_a_shared_file(cluster: Cluster) -> None:
    options = ["--local-addr=127.0.0.1", f"--rdzv-endpoint={cluster.directory}/state"]
    agents = cluster.pair("report.py", backend="c10d", conf="store_type=file", options=options)
    assert [agent.wait() for agent in agents] == [0, 0], outputs(agents)
    check_world([report for agent in agents for report in agent.reports()], 2, 1)


def torchrun(
    cluster: Cluster, backend: str, *script: object, conf: str = "", options: tuple[str, ...] = ()
) -> AgentProcess:
    command = ["torchrun", "--nnodes=2", "--max-restarts=1", f"--rdzv-backend={backend}", *options]
    command += [f"--rdzv-endpoint={cluster.endpoint}", *([f"--rdzv-conf={conf}"] if conf else [])]
    return cluster.start([*command, *script])


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["parallel", "static"])
def test_our_backends_from_plain_torchrun(cluster: Cluster, backend: str) -> None:
    script = (cluster.script("report.py"), "crash", 1, 3)
    confs = [f"rank={rank}" if backend == "static" else "" for rank in (0, 1)]
    agents = [torchrun(cluster, f"rdzv-plugins.{backend}", *script, conf=conf) for conf in confs]
    assert [agent.wait() for agent in agents] == [0, 0], outputs(agents)
    ports = [[report["MASTER_PORT"] for report in agent.reports()] for agent in agents]
    assert ports[0] == ports[1]
    assert len(set(ports[0])) == 2, "a store of its own for each round"


@pytest.mark.thorough
def test_static_from_torchrun_needs_a_rank_and_says_how_to_give_it(cluster: Cluster) -> None:
    """At the end of a traceback that is torch's, down to where it calls us."""
    cluster.warm = False
    agent = torchrun(cluster, "rdzv-plugins.static", cluster.script("plain.py"), "sleep")
    assert agent.wait() != 0
    assert "rank=0" in agent.text.splitlines()[-1]
    assert len(re.findall(r'^  File ".*/rdzv_plugins/', agent.text, re.MULTILINE)) <= 1, agent.text


@pytest.mark.thorough
def test_a_failed_node_of_plain_torchrun_ends_the_job_of_the_other(cluster: Cluster) -> None:
    options = ("--max-restarts=0", "--no-python")
    agents = [
        torchrun(cluster, "rdzv-plugins.parallel", "/bin/sh", "-c", script, options=options)
        for script in ("sleep 1; exit 3", "sleep 600")
    ]
    assert [agent.wait() for agent in agents] == [1, 1], outputs(agents)
    assert "PeerFailed" in agents[1].text
    cluster.check_gone()


@pytest.mark.thorough
def test_restart_of_a_job_with_a_node_of_torchruns_says_what_is_wrong(cluster: Cluster) -> None:
    """torch publishes the workers' store once: documented in docs/guides/from-torchrun.md."""
    script = (cluster.script("report.py"), "crash", 0, 3)
    plain = torchrun(cluster, "c10d", *script, options=("--local-addr=127.0.0.1",))  # first in torch's order: rank 0
    options = ["--rdzv-backend=c10d", f"--rdzv-endpoint={cluster.endpoint}", "--nnodes=2", "--max-restarts=1"]
    ours = cluster.start(["rdzv-run", *options, "--rdzv-conf=read_timeout=5", "--local-addr=localhost", *script])
    assert ours.wait(90) == RendezvousFailed.exit_code, ours.text + plain.text  # workers may print tracebacks
    assert "plain torchrun" in ours.text.partition("rdzv-run: error: ")[2]


def node(cluster: Cluster, backend: str, rank: int, script: str = "plain.py", *, nnodes: int = 2) -> AgentProcess:
    """One that waits for the other."""
    given, args = rank if backend == "static" else None, ["sleep"] if script == "plain.py" else []
    return cluster.run(script, *args, backend=backend, nnodes=nnodes, rank=given, conf=LONG, options=["--rdzv-id=mine"])


def seen(endpoint: str) -> RunStatus:
    """Who is there by ``c10d``."""
    entry = PluginHost.load().catalog.find("c10d")
    request = Request("c10d", "mine", endpoint, 1, 1, 1, given=frozenset({"run_id"}))
    assert entry.backend.status is not None
    with contextlib.suppress(RdzvError):
        return entry.backend.status(with_options(entry, request), PATIENCE_S)
    return RunStatus()


@pytest.mark.thorough
def test_another_number_of_nodes_is_refused_by_name_and_the_others_go_on(cluster: Cluster) -> None:
    first = node(cluster, "c10d", 0, "report.py")
    eventually(lambda: len(seen(cluster.endpoint).nodes) == 1, lambda: str(seen(cluster.endpoint)))
    for _ in range(2):  # every one is heard of, not only the first
        other = node(cluster, "c10d", 1, nnodes=3)
        message = error_of(other, SettingsDiffer.exit_code)
        assert all(each in message for each in (f"pid {first.pid}", cluster.endpoint, "--nnodes"))
        assert "--nnodes" in first.wait_for(rf"\(pid {other.pid}\) tried to join .*").group()
    another_run = cluster.run("report.py", backend="c10d", nnodes=1, options=["--rdzv-id=other"])
    assert another_run.wait() == 0, another_run.text
    second = node(cluster, "c10d", 1, "report.py")
    assert [first.wait(), second.wait()] == [0, 0], outputs([first, second])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("there", "second", "code"),
    [
        ("parallel", "tiered", SettingsDiffer.exit_code),
        ("parallel", "static", 68),
        ("parallel", "etcd", 68),
        ("c10d", "parallel", 68),
        ("etcd", "parallel", 68),  # a native client, and one of torch's store
        ("etcd", "static", 68),
    ],
)
def test_second_of_another_backend_is_told_what_is_there(
    cluster: Cluster, request: pytest.FixtureRequest, there: str, second: str, code: int
) -> None:
    """At the same endpoint."""
    if there == "etcd":
        cluster.port = request.getfixturevalue("one_etcd").endpoints[0].port
        named = ["etcd 3."]
    else:
        host = node(cluster, there, 0)
        named = [f"by {there}", f"(pid {host.pid})"]
        cluster.wait_listening()
        recognise = PluginHost.load().catalog.find(there).backend.recognise
        asks = Request(there, "mine", cluster.endpoint, 1, 1, 1)
        assert recognise is not None

        def told() -> str:
            with contextlib.suppress(RdzvError, OSError):
                return recognise(asks, PATIENCE_S)
            return ""

        eventually(lambda: f"(pid {host.pid})" in told() and f" by {there}" in told(), told)
    message = error_of(node(cluster, second, 1), code)
    if code != SettingsDiffer.exit_code:  # else both are of the native store
        assert all(each in message for each in named), message
    assert "--rdzv-backend" in message
