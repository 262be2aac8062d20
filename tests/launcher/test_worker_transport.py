"""Unmodified scripts on the Unix socket of their node's proxy, and everything that must not change for others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import pytest
from kits.launcher.harness import WORKERS, Cluster
from kits.wire.processes import outputs, spawned
from kits.wire.unix_kit import Reached, reached, unused

from rdzv_plugins.torch_bridge import worker_transport


def job(server: Reached, *own: dict[str, str]) -> tuple[list[dict[str, Any]], list[str]]:
    """What the workers of a job reported, and all that they printed."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(server.port),
        "WORLD_SIZE": str(len(own)),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    command = [sys.executable, WORKERS / "over_socket.py"]
    environments = [{"RANK": str(rank), **each} for rank, each in enumerate(own)]
    with spawned([command] * len(own), environments, **shared) as workers:
        texts = outputs(workers)
    reports = [json.loads(line) for text in texts for line in text.splitlines() if line.startswith("{")]
    assert len(reports) == len(own), texts
    for rank, report in enumerate(reports):
        everyone = list(range(len(own)))
        assert report["rank"] == rank
        assert report["sum"] == sum(everyone)
        assert report["all"] == everyone
        assert report["said"] == [str(each) for each in everyone]
    return reports, texts


def test_torch_finds_the_entry_point() -> None:
    (entry,) = (e for e in entry_points(group="torch.backends") if e.value.startswith("rdzv_plugins."))
    assert entry.load() is worker_transport.install


def test_unmodified_workers_use_the_socket_and_mix_with_others() -> None:
    with reached() as server:
        given = {"RDZV_STORE_SOCKET": server.path, "RDZV_STORE_PORT": str(server.port)}
        reports, texts = job(server, given, {})
    assert [report["by"] for report in reports] == [["unix"], ["tcp"]]
    assert not any("rdzv-plugins" in text for text in texts)


def test_a_socket_that_cannot_be_used_is_one_line_and_loopback() -> None:
    nobody = unused()
    with reached() as server:
        # rank 1: a job in a job, whose store is not the one that the socket leads to
        unusable = {"RDZV_STORE_SOCKET": nobody, "RDZV_STORE_PORT": str(server.port)}
        reports, texts = job(server, unusable, {"RDZV_STORE_SOCKET": server.path, "RDZV_STORE_PORT": "1"})
        where = f"127.0.0.1:{server.port}"
    assert [report["by"] for report in reports] == [["tcp"], ["tcp"]]
    said = [[line for line in text.splitlines() if "rdzv-plugins" in line] for text in texts]
    assert [len(each) for each in said] == [1, 0]
    assert all(each in said[0][0] for each in (where, nobody))


def test_without_the_variable_torch_is_left_alone() -> None:
    program = """
import sys, torch
from torch.distributed.rendezvous import _rendezvous_handlers, _env_rendezvous_handler
ours = sorted(name for name in sys.modules if name.startswith("rdzv_plugins"))
print(_rendezvous_handlers["env"] is _env_rendezvous_handler, *ours)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RDZV_")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=200)
    loaded = [
        "rdzv_plugins",
        *(f"rdzv_plugins.{name}" for name in ("stacks_on_request", "torch_bridge", "torch_bridge.bridge")),
    ]
    assert done.stdout.split() == ["True", *loaded, "rdzv_plugins.torch_bridge.worker_transport"], done.stderr


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """torch's, to be replaced."""
    handlers: dict[str, Any] = {}
    module = import_module("torch.distributed.rendezvous")  # a function of that name hides it
    monkeypatch.setattr(module, "_rendezvous_handlers", handlers)
    monkeypatch.setenv("RDZV_STORE_SOCKET", unused())
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    for name in ("RDZV_STORE_PORT", "MASTER_PORT"):
        monkeypatch.setenv(name, "29500")
    return handlers


def test_what_torchs_handler_yields_and_raises_is_passed_on(
    handlers: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    def handler(url: str, **options: Any) -> Any:
        assert (url, options) == ("env://", {"timeout": 5})
        yield "no TCPStore", 3, 4
        raise RuntimeError("Unable to perform re-rendezvous using env:// method")

    handlers["env"] = handler
    worker_transport.install()
    rounds = handlers["env"]("env://", timeout=5)
    assert next(rounds) == ("no TCPStore", 3, 4)
    with pytest.raises(RuntimeError, match="re-rendezvous"):
        next(rounds)
    assert capfd.readouterr().err.count("\n") == 1


def test_agents_give_their_workers_a_socket(cluster: Cluster) -> None:
    agents = cluster.pair("over_socket.py", backend="tiered", conf="store=tiered,worker_transport=unix")
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].text + agents[1].text
    reports = [report for agent in agents for report in agent.reports()]
    assert [report["by"] for report in reports] == [["unix"]] * len(reports)
