"""Our backends from plain torchrun, and jobs that mix plain torchrun nodes with ours."""

from __future__ import annotations

import re

import pytest
from kits.launcher.harness import Agent, Cluster


def torchrun(cluster: Cluster, script: str, *args: object, backend: str, conf: str = "", **options: object) -> Agent:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = ["torchrun", f"--rdzv-backend={backend}", f"--rdzv-endpoint={cluster.endpoint}", *flags]
    return cluster.start([*command, *([f"--rdzv-conf={conf}"] if conf else []), cluster.script(script), *args])


@pytest.mark.parametrize(
    "backend", ["parallel", pytest.param("static", marks=pytest.mark.thorough)]
)  # without a restart by all: the conformance suite
def test_our_backends_from_plain_torchrun(cluster: Cluster, backend: str) -> None:
    agents = [
        torchrun(
            cluster,
            "report.py",
            *("crash", 1, 3),
            backend=f"rdzv-plugins.{backend}",
            conf=f"rank={rank}" if backend == "static" else "",
            nnodes=2,
            max_restarts=1,
        )
        for rank in (0, 1)
    ]
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].text + agents[1].text
    ports = [[report["MASTER_PORT"] for report in agent.reports()] for agent in agents]
    assert ports[0] == ports[1]
    assert len(set(ports[0])) == 2, "a store of its own for each round"


@pytest.mark.thorough
def test_static_from_torchrun_needs_a_rank_and_says_how_to_give_it(cluster: Cluster) -> None:
    """At the end of a traceback that is torch's, down to where it calls us."""
    cluster.warm = False
    agent = torchrun(cluster, "plain.py", "sleep", backend="rdzv-plugins.static", nnodes=2)
    assert agent.wait() != 0
    assert "rank=0" in agent.text.splitlines()[-1]
    assert len(re.findall(r'^  File ".*/rdzv_plugins/', agent.text, re.MULTILINE)) <= 1, agent.text


@pytest.mark.thorough
def test_unknown_backend_from_torchrun(cluster: Cluster) -> None:
    cluster.warm = False
    agent = torchrun(cluster, "plain.py", "sleep", backend="rdzv-plugins", nnodes=1)
    assert agent.wait() != 0
    assert "--rdzv-backend=rdzv-plugins " in agent.text


@pytest.mark.thorough
def test_restart_of_a_mixed_job_says_what_is_wrong(cluster: Cluster) -> None:
    """torch publishes the workers' store once: documented in docs/how-to/coming-from-torchrun.md."""
    plain = torchrun(
        cluster, "report.py", "crash", 0, 3, backend="c10d", nnodes=2, max_restarts=1, local_addr="127.0.0.1"
    )  # first in torch's order of addresses: rank 0
    ours = cluster.run(
        "report.py",
        *("crash", 0, 3),
        backend="c10d",
        nnodes=2,
        restarts=1,
        conf="read_timeout=5",
        options=["--local-addr=localhost"],
    )
    assert ours.wait() == 76, ours.text + plain.text
    assert "plain torchrun" in ours.text.partition("rdzv-run: error: ")[2]
