"""The commands of examples/rdzv-redis/README.md, run: the set-ups are Redis servers, and jobs run there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from kits import ROOT
from kits.distribution import leave
from kits.eventually import eventually
from kits.examples.guides import block, here, run, start
from kits.launcher.harness import AgentProcess, Cluster, free_port
from kits.launcher.quick_digits import quick_digits

from rdzv_plugins.testing import ServerProcess

GUIDE = "../../examples/rdzv-redis/README.md"
EXAMPLE = "examples/train_digits.py"
SOURCE = ROOT / "examples" / "rdzv-redis" / "src"

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        shutil.which("redis-server") is None and os.environ.get("CI") != "true",
        reason="no Redis: tests/install.sh redis",
    ),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which processes find the package as if it were installed."""
    pytest.importorskip("redis")
    site = leave(tmp_path_factory.mktemp("site"), "rdzv-redis", "[rdzv_plugins]\nredis = rdzv_redis\n", "0.1.0")
    return {"PYTHONPATH": f"{SOURCE}{os.pathsep}{site}"}


@contextmanager
def redis(folder: Path, *arguments: str) -> Iterator[int]:
    """The port of an empty one, with those arguments more."""
    port = free_port()
    flag = "--tls-port" if "--tls-cert-file" in arguments else "--port"
    command = ["redis-server", flag, str(port), "--dir", str(folder), "--save", "", *arguments]
    server = ServerProcess(command, port, log=folder / "redis.log", keeps_data=False)
    server.start()
    try:
        yield port
    finally:
        server.kill()


def one_node(jobs: Cluster, command: str, **env: str) -> None:
    """A job by the guide's command, of one node."""
    command = here(command, {"--nnodes=2:4": "--nnodes=1", "train.py": f"{jobs.script('plain.py')} env WORLD_SIZE"})
    node = start(jobs, command, **env)
    finished([node])
    assert "WORLD_SIZE=1" in node.text


def finished(nodes: list[AgentProcess]) -> None:
    assert [node.wait() for node in nodes] == [0] * len(nodes), "\n".join(node.text for node in nodes)


def test_one_machine(jobs: Cluster, installed: dict[str, str], tmp_path: Path) -> None:
    port = free_port()
    server = start(jobs, here(block(GUIDE, "redis-server --port").rstrip(), {"6379": str(port), "/tmp": str(tmp_path)}))
    eventually(lambda: "Ready to accept connections" in server.text, lambda: server.text)
    script = here(block(GUIDE, "--rdzv_id=try"), {":6379": f":{port}", EXAMPLE: f"{quick_digits(tmp_path)} --epochs=2"})
    nodes = [start(jobs, command, **installed) for command in script.splitlines()]
    finished(nodes)
    assert "world size 2" in nodes[0].text + nodes[1].text
    jobs.kill(server.pid)
    server.process.wait(60)


def test_users(jobs: Cluster, installed: dict[str, str], tmp_path: Path) -> None:
    with redis(tmp_path) as port:
        run(here(block(GUIDE, "ACL SETUSER"), {"redis-cli": f"redis-cli -p {port}"}), tmp_path)
        file, *commands = block(GUIDE, ".rdzv-redis\n").rsplit("\n", 3)[:3]
        run(file, tmp_path, HOME=str(tmp_path))
        assert (tmp_path / ".rdzv-redis").stat().st_mode & 0o777 == 0o600
        assert len(commands) == 2
        for command in commands:
            at = here(command, {"10.0.0.11:6379": f"127.0.0.1:{port}"})
            one_node(jobs, at, HOME=str(tmp_path), **installed)
        may = f"redis-cli -p {port} --user trainer --pass PASSWORD --no-auth-warning"
        assert run(f"{may} get rdzv-plugins/x", tmp_path).strip() == ""
        for elsewhere in (f"{may} get other", f"{may} config get '*'", f"{may} flushall"):
            assert "NOPERM" in run(elsewhere, tmp_path)
        assert "NOAUTH" in run(f"redis-cli -p {port} get x", tmp_path)


def test_tls(jobs: Cluster, installed: dict[str, str], tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("127.0.0.1", "node"):
        issued = authority.issue_cert(name)
        issued.private_key_pem.write_to_path(tmp_path / f"{name}-key.pem")
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
    own = ["--port", "0", "--tls-cert-file", "127.0.0.1.pem", "--tls-key-file", "127.0.0.1-key.pem"]
    own = [str(tmp_path / each) if each.endswith(".pem") else each for each in own]
    with redis(tmp_path, *own, "--tls-ca-cert-file", str(tmp_path / "ca.pem")) as port:
        command = here(block(GUIDE, "rediss://"), {"10.0.0.11:6379": f"127.0.0.1:{port}"})
        one_node(jobs, f"cd {tmp_path}\n{command}", **installed)
