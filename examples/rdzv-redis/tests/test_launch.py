"""Real agents on a Redis with a password: any of them may be killed, and none is special."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import T, client, redis_server, wait_until

WORKER = Path(__file__).parent / "workers" / "trains.py"
PASSWORD = "secret"


class Node:
    """An agent with one worker, as a process; its output goes to a file."""

    def __init__(self, command: list[str], output: Path, env: dict[str, str]) -> None:
        self.output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=os.environ | env
            )

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def reports(self) -> list[dict[str, Any]]:
        """What its workers have said, one for each round."""
        return [json.loads(line) for line in re.findall(r"^\{.*\}$", self.text, re.MULTILINE)]

    def kill(self) -> None:
        """The agent, and its workers with it, as when a machine fails."""
        self.process.kill()
        self.process.wait(T)
        for report in self.reports():
            with contextlib.suppress(ProcessLookupError):
                os.kill(report["pid"], signal.SIGKILL)


class Job:
    """Nodes of one job, in a directory."""

    def __init__(self, port: int, directory: Path) -> None:
        self.port, self.directory, self.stop = port, directory, directory / "stop"
        self.nodes: list[Node] = []
        self.credentials = directory / "credentials"
        self.credentials.write_text(f"default:{PASSWORD}\n")

    def node(self, *launcher: str, backend: str, conf: str = "", **env: str) -> Node:
        flags = [backend, f"--rdzv_endpoint=127.0.0.1:{self.port}", "--rdzv_id=job", "--nnodes=1:3"]
        flags += ["--nproc_per_node=1", f"--rdzv_conf=ttl=4,last_call_timeout=30,allow_same_host=1{conf}"]
        command = [sys.executable, *launcher, *flags, str(WORKER), str(self.stop)]
        node = Node(command, self.directory / f"node{len(self.nodes)}.log", env)
        self.nodes.append(node)
        return node

    def together(self, nodes: list[Node]) -> dict[int, Node]:
        """Once the newest workers of ``nodes`` are of one world of that size: the nodes by their ranks."""

        def found() -> dict[int, Node]:
            newest = [(node.reports() or [{}])[-1] for node in nodes]
            sizes = {report.get("WORLD_SIZE") for report in newest}
            ranks = {int(report.get("GROUP_RANK", -1)): node for report, node in zip(newest, nodes, strict=True)}
            return ranks if sizes == {str(len(nodes))} and set(ranks) == set(range(len(nodes))) else {}

        return wait_until(found, self.texts)

    def texts(self) -> str:
        return "\n---\n".join(node.text for node in self.nodes)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with redis_server(tmp_path / "redis", {"requirepass": PASSWORD}) as server:
        job = Job(server.port, tmp_path)
        try:
            yield job
        finally:
            for node in job.nodes:
                node.kill()


def test_any_node_may_be_killed_the_first_one_too(job: Job) -> None:
    """Started by rdzv-run and by plain torchrun; the password comes by a file, and by the environment."""
    by_file = f",credentials={job.credentials}"
    first = job.node("-m", "rdzv_launcher.run.cli", backend="--rdzv_backend=redis", RDZV_REDIS_PASSWORD=PASSWORD)
    wait_until(lambda: "joining at" in first.text, job.texts)  # node 0 is the first one
    second = job.node("-m", "rdzv_launcher.run.cli", backend="--rdzv_backend=redis", conf=by_file)
    third = job.node("-m", "torch.distributed.run", backend="--rdzv-backend=rdzv-plugins.redis", conf=by_file)
    living = [first, second, third]
    while len(living) > 1:
        lost = job.together(living)[0]
        lost.kill()
        living.remove(lost)
    job.together(living)
    job.stop.touch()
    assert living[0].process.wait(2 * T) == 0, job.texts()
    assert {report["RDZV_REDIS_PASSWORD"] for node in job.nodes for report in node.reports()} == {None}
    assert PASSWORD not in job.texts()
    with client(job.port, password=PASSWORD) as redis:
        wait_until(lambda: not redis.keys("*/job/*"), lambda: redis.keys())


def test_the_launcher_prints_what_the_backend_logs(tmp_path: Path) -> None:
    """Nobody answers at that address, which is of no network."""
    flags = ["--rdzv_backend=redis", "--rdzv_endpoint=192.0.2.1", "--rdzv_id=job", "--rdzv_conf=timeout=1"]
    done = subprocess.run(
        [sys.executable, "-m", "rdzv_launcher.run.cli", *flags, "--nnodes=1:2", str(WORKER), str(tmp_path / "stop")],
        env=os.environ | {"RDZV_REDIS_PASSWORD": PASSWORD},
        capture_output=True,
        text=True,
        timeout=2 * T,
        check=False,
    )
    assert done.returncode == 68, done.stderr
    assert "rdzv-run warning: the password of user 'default' goes to 192.0.2.1:6379 in the clear" in done.stderr
    assert PASSWORD not in done.stderr


def test_a_wrong_password_ends_the_launch_at_once(job: Job) -> None:
    node = job.node("-m", "rdzv_launcher.run.cli", backend="--rdzv_backend=redis", RDZV_REDIS_PASSWORD="wrong")
    assert node.process.wait(2 * T) == 77, node.text
    assert "does not accept the password of user 'default'" in node.text
    assert "RDZV_REDIS_PASSWORD" in node.text
    assert "Traceback" not in node.text
