"""``rdzv-run --check``: what can be known before the start, as the launch itself would say it; nothing is started."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kits.etcd import etcd_kit
from kits.eventually import eventually
from kits.launcher.harness import Cluster, free_port, server

from rdzv_launcher.run.check import CHECKS
from rdzv_launcher.run.cli import main
from rdzv_launcher.run.preparation import STEPS
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.native.framing import ask_statistics

NAMES = [each.name for each in CHECKS]
LINE = re.compile(r"^(ok|warning|FAILED|skipped) +([a-z -]+): (.+)$", re.MULTILINE)


class Lines(dict[str, tuple[str, str]]):
    """By the name of a check: its verdict, and what it says."""

    def verdicts(self, verdict: str) -> list[str]:
        return [name for name, (found, _) in self.items() if found == verdict]


Checks = Callable[..., Lines]


@pytest.fixture
def run(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """``rdzv-run`` in this process, on a script that leaves a trace; its exit code and all that it has said."""
    (cluster.directory / "train.py").write_text("open('started', 'w')")
    monkeypatch.chdir(cluster.directory)
    for name in os.environ:
        if name.startswith(("PET_", "RDZV_")):
            monkeypatch.delenv(name)

    def launched(*arguments: str, script: str = "train.py") -> tuple[int, str, str]:
        capfd.readouterr()
        code = main([*arguments, script])
        return (code, *capfd.readouterr())

    return launched


@pytest.fixture
def checks(run: Callable[..., Any]) -> Checks:
    """What the command says with --check."""

    def made(*arguments: str, code: int = 0, script: str = "train.py") -> Lines:
        before = sorted(Path().rglob("*"))
        found, out, said = run("--check", *arguments, script=script)
        assert found == code, out + said
        assert sorted(Path().rglob("*")) == before, "it leaves nothing"
        lines = Lines({name: (verdict, said) for verdict, name, said in LINE.findall(out + said)})
        assert list(lines) == NAMES, out + said  # each has one line, in that order
        return lines

    return made


def test_each_step_of_a_launch_is_a_check_in_the_same_order() -> None:
    assert [each.find for each in CHECKS if each.find in STEPS] == list(STEPS)


@pytest.mark.parametrize("name", ["static", "c10d", "parallel", "tiered"])
def test_a_good_command(checks: Checks, cluster: Cluster, name: str) -> None:
    command = [f"--rdzv-backend={name}", f"--rdzv-endpoint={cluster.endpoint}", "--log-dir=logs/of/this", "-r3"]
    assert checks(*command, f"--rdzv-conf=worker_ports={free_port()}").verdicts("ok") == NAMES


ETCD = ("--rdzv-backend=etcd", "--rdzv-endpoint=localhost:1")
REFUSED = [
    (2, "arguments", ("--nnodes=3:2",), "--nnodes"),
    (69, "arguments", ("--nproc-per-node=npu",), "torch_npu"),
    (2, "backend", ("--rdzv-backend=c10d", "--rdzv-no-plugin=c10d"), "c10d"),
    (69, "backend", ("--rdzv-backend=etcd-v2",), "etcd-v2"),
    (2, "backend", ("--rdzv-backend=parallel", "--nnodes=2"), "--rdzv-endpoint"),
    (2, "options", ("--nnodes=2", "--rdzv-endpoint=localhost:1", "--node-rank=2"), "--node-rank"),
    (2, "options", (*ETCD, "--rdzv-id=a", "--rdzv-conf=cacert=nothing.pem"), "cacert"),
    (2, "script", ("--no-python",), "train.py"),
    (2, "directories", ("--log-dir=train.py/logs",), "--log-dir"),
    (2, "flags", ("--redirects=9",), "--redirects"),
    (2, "signals", ("--signals-to-handle=SIGTERM,SIGNONE",), "SIGNONE"),
]
"""(Exit code, the check that finds it, the command, what is named.)"""


def test_what_a_launch_refuses_is_told_in_its_words(checks: Checks, run: Callable[..., Any]) -> None:
    for code, name, arguments, named in REFUSED:
        lines = checks(*arguments, code=code)
        assert lines.verdicts("FAILED") == [name]
        assert named in lines[name][1]
        found, out, said = run(*arguments)
        error, _, remedy = said.partition("rdzv-run: error: ")[2].strip().partition("\nrdzv-run: ")
        whole = f"{error}{'' if error.endswith(('.', '?', '!')) else '.'} {remedy}".strip()
        assert (found, out, whole) == (code, "", lines[name][1])


def test_srun_on_several_machines_is_refused_an_endpoint_that_each_has_for_itself(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    command = ["--rdzv-backend=parallel", "--nnodes=1:2", "--node-rank=0", "--rdzv-endpoint=127.0.0.1:1"]
    code, _, said = run(*command)
    assert (code, "srun" in said, "127.0.0.1:1" in said) == (2, True, True), said


def test_all_that_is_wrong_is_told_at_once_and_the_first_decides(checks: Checks) -> None:
    lines = checks("--rdzv-backend=etcd-v2", "--log-dir=train.py/logs", script="nothing.py", code=69)
    assert lines.verdicts("FAILED") == ["backend", "script", "directories"]
    assert lines.verdicts("skipped") == ["options", "flags", "endpoint", "worker ports", "health"]


def test_ports_that_are_taken(checks: Checks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        lines = checks(f"--rdzv-endpoint=127.0.0.1:{port}", code=68)
        assert lines.verdicts("FAILED") == ["endpoint"]
        assert f"pid {os.getpid()} (" in lines["endpoint"][1]
        mine = ["--rdzv-backend=tiered", f"--rdzv-conf=worker_ports={port}"]
        assert checks(*mine, code=68).verdicts("FAILED") == ["worker ports"]
        several = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
        assert checks(*mine, *several).verdicts("warning") == ["address", "worker ports"]  # if it gets rank 0
        assert checks(*mine, *several, "--node-rank=1")["worker ports"][0] == "skipped"


def test_endpoints_that_cannot_be_reached(checks: Checks) -> None:
    client, port = ["--nnodes=2", "--node-rank=1"], free_port()
    assert checks(*client, "--rdzv-endpoint=no..name:1", code=68).verdicts("FAILED") == ["endpoint"]
    assert checks(*client, f"--rdzv-endpoint=127.0.0.1:{port}")["endpoint"][0] == "warning", "nobody listens there yet"
    with server(port, b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        for backend in ("static", "parallel"):
            lines = checks(*client, f"--rdzv-backend={backend}", f"--rdzv-endpoint=127.0.0.1:{port}", code=68)
            assert f"127.0.0.1:{port}" in lines["endpoint"][1]


@pytest.mark.parametrize("name", ["parallel", pytest.param("static", marks=pytest.mark.thorough)])
def test_beside_a_node_that_waits(checks: Checks, cluster: Cluster, name: str) -> None:
    """Its job hears nothing of it."""
    there = [f"--rdzv-backend={name}", f"--rdzv-endpoint={cluster.endpoint}", "--rdzv-id=mine"]
    first = cluster.start(["rdzv-run", *there, "--nnodes=2", "--node-rank=0", "train.py"])
    cluster.wait_listening()
    eventually(lambda: checks(*there, "--nnodes=2", "--node-rank=1")["endpoint"][0] == "ok", lambda: first.text)
    if name == "parallel":

        def runs() -> list[dict[str, Any]]:
            return ask_statistics(Endpoint("127.0.0.1", cluster.port), 60)["runs"]

        eventually(lambda: [run for run in runs() if run["keys"]], lambda: first.text)
        # the server sees the end of a connection a moment later
        eventually(lambda: [(run["name"], run["sessions"]) for run in runs()] == [("mine", 1)], runs)
    assert "--nnodes" in checks(*there, "--nnodes=3", "--node-rank=1", code=78)["endpoint"][1]
    checks(*there[:2], "--rdzv-id=other", "--nnodes=2", "--node-rank=1", code=76)
    assert "refused" not in first.text


@pytest.mark.thorough
def test_beside_a_node_that_waits_at_an_etcd(checks: Checks, cluster: Cluster, one_etcd: etcd_kit.Cluster) -> None:
    there = ["--rdzv-backend=etcd", f"--rdzv-endpoint={one_etcd.endpoint}", "--rdzv-id=checked"]

    def keys() -> list[str]:
        return sorted(one_etcd.keys("/rdzv-plugins/checked/"))

    assert checks(*there).verdicts("ok") == NAMES
    assert not keys()
    first = cluster.start(["rdzv-run", *there, "--nnodes=2", "train.py"])
    eventually(lambda: any(key.endswith("/k/all/progress") for key in keys()), lambda: first.text)
    before = keys()
    assert checks(*there, "--nnodes=2")["endpoint"][0] == "ok"
    assert "--nnodes" in checks(*there, "--nnodes=3", code=78)["endpoint"][1]
    assert keys() == before
