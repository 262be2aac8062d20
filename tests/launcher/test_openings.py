"""What a backend opens at the start: without an endpoint on one node, and errors of files and names at once."""

from __future__ import annotations

import os
import subprocess

import pytest
from kits.launcher.harness import BIN, Agent, Cluster, error_of

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("command", ["rdzv-run --rdzv-backend=", "torchrun --rdzv-backend=rdzv-plugins."])
def test_one_node_needs_no_endpoint(cluster: Cluster, command: str) -> None:
    for backend in ("static --rdzv-conf=rank=0", "c10d --rdzv-conf=store_type=FILE"):
        agent = cluster.start([*f"{command}{backend}".split(), "--no-python", "/bin/echo", "it runs"])
        assert agent.wait() == 0, agent.text
        assert "it runs" in agent.text


def test_main_gives_back_what_it_has_changed(cluster: Cluster) -> None:
    script = cluster.directory / "calls_main.py"
    script.write_text(
        "import logging, os, signal\n"
        "from rdzv_launcher.run.cli import main\n"
        "names = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]\n"
        "logs = [logging.getLogger(name) for name in ('rdzv_plugins', 'rdzv_launcher')]\n"
        "def logging_now(): return [(list(log.handlers), log.level, log.propagate) for log in logs]\n"
        "def state(): return [signal.getsignal(name) for name in names], logging_now(), dict(os.environ)\n"
        "signal.signal(signal.SIGHUP, lambda *_: None)\n"
        "before = state()\n"
        "codes = [main(['--nproc-per-node=2', '--no-python', '/bin/sh', '-c', f'exit {code}']) for code in (0, 3)]\n"
        "print('codes', codes, 'unchanged', state() == before)\n"
    )
    agent = cluster.start(["python", script])
    assert agent.wait() == 0, agent.text
    assert "codes [0, 3] unchanged True" in agent.text


def in_namespaces(cluster: Cluster, prepared: str, *arguments: str) -> Agent:
    """A launch by root in a network and a mount namespace of its own, after the shell commands ``prepared``."""
    namespaces = ["/usr/bin/unshare", "--net", "--mount"]
    if os.getuid() or subprocess.run([*namespaces, "ip", "link", "set", "lo", "up"], capture_output=True).returncode:
        pytest.skip("needs to be root, and allowed to make namespaces")
    return cluster.start([*namespaces, "sh", "-c", f'{prepared}\nexec {BIN}/rdzv-run "$@"', "sh", *arguments])


@pytest.mark.parametrize(
    ("backend", "endpoint"),
    [
        ("tiered", "localhost:29707"),
        ("parallel", "localhost:29707,localhost:29708,localhost:29709"),
    ],
    ids=["tiered", "several"],
)
def test_localhost_may_be_of_ipv6_alone(cluster: Cluster, backend: str, endpoint: str) -> None:
    (cluster.directory / "hosts").write_text("::1 localhost\n")
    (cluster.directory / "nsswitch").write_text("hosts: files\n")
    prepared = (
        f"ip link set lo up; mount --bind {cluster.directory}/hosts /etc/hosts; "
        f"mount --bind {cluster.directory}/nsswitch /etc/nsswitch.conf"
    )
    nodes = endpoint.count(",") + 1
    prepared += f'\nfor each in $(seq 2 {nodes}); do {BIN}/rdzv-run "$@" & done'
    flags = [f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}", f"--nnodes={nodes}"]
    agent = in_namespaces(cluster, prepared, *flags, "--rdzv-id=ipv6", "--no-python", "/bin/echo", "it runs")
    assert agent.wait() == 0, agent.text
    assert "it runs" in agent.text


def test_without_a_loopback_it_is_named_at_once(cluster: Cluster) -> None:
    agent = in_namespaces(cluster, ":", "--rdzv-backend=tiered", "--no-python", "/bin/true")
    message = error_of(agent, 68)
    assert "127.0.0.1" in message
