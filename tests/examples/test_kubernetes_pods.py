"""What the manifests of examples/kubernetes start, started: each pod's own command and environment, as processes."""

from __future__ import annotations

import http.client
import re
import shlex
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kits.etcd import etcd_kit
from kits.etcd.etcd_processes import NEEDED_MIB, require_programs
from kits.eventually import eventually
from kits.examples.guides import block
from kits.examples.manifests import ETCD, Pod, container_of, one, pods
from kits.launcher.harness import Agent, Cluster, error_of, free_port
from kits.launcher.quick_digits import DIGITS, quick_digits

from rdzv_plugins.testing.services import data_directory

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]  # three launchers and three workers, each with torch

LONG_S = 180
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def answers(url: str) -> bool:
    """As a probe sees it."""
    try:
        with direct.open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


@contextmanager
def etcd_of_the_manifest(jobs: Cluster) -> Iterator[str]:
    """Its three pods, ready; the endpoint is on loopback."""
    require_programs()
    manifest = one("etcd.yaml", "StatefulSet")
    data = data_directory(jobs.directory, room_mib=NEEDED_MIB)
    names = [f"etcd-{number}" for number in range(manifest["spec"]["replicas"])]
    ports = {(name, port): free_port() for name in names for port in (2379, 2380, 2381)}
    hosts = {f"{name}.etcd:{port}": f"127.0.0.1:{ports[name, port]}" for name, port in ports}
    members = []
    try:
        for name in names:
            own = {f"0.0.0.0:{port}": f"127.0.0.1:{ports[name, port]}" for port in (2379, 2380, 2381)}
            here = hosts | own | {"/var/lib/etcd": str(data / name)}
            pod = Pod(manifest, {"metadata.name": name}, here)
            program = shutil.which(pod.command[0])
            members.append(
                jobs.start([program, *pod.command[1:]], before=("setpriv", "--pdeathsig", "KILL"), **pod.env)
            )
        for probe in ("livenessProbe", "readinessProbe"):
            path = container_of(manifest)[probe]["httpGet"]["path"]
            for name in names:
                url = f"http://127.0.0.1:{ports[name, 2381]}{path}"
                eventually(lambda url=url: answers(url), lambda: "\n".join(member.text for member in members))
        yield ",".join(hosts[member] for member in ETCD.split(","))
    finally:
        for member in members:
            jobs.kill(member.pid)
            member.process.wait(60)
        shutil.rmtree(data, ignore_errors=True)


@pytest.fixture(autouse=True)
def _warm(jobs: Cluster) -> None:
    """What is tried is what a manifest says, not how a command starts."""
    jobs.warm = True


def here(jobs: Cluster, endpoint: str, script: Path) -> dict[str, str]:
    """What is elsewhere in a cluster."""
    (jobs.directory / "checkpoints").mkdir(exist_ok=True)
    (jobs.directory / "secret").mkdir(exist_ok=True)
    return {
        ETCD: endpoint,
        "/checkpoints": str(jobs.directory / "checkpoints"),
        "/run/secrets/rdzv-etcd": str(jobs.directory / "secret"),
        DIGITS.name: str(script),
    }


def start(jobs: Cluster, pod: Pod, *more: str) -> Agent:
    return jobs.start([*pod.command, *more], **pod.env)


def test_the_job_trains_at_the_etcd_of_the_manifest(jobs: Cluster) -> None:
    with etcd_of_the_manifest(jobs) as endpoint:
        job = pods(one("job.yaml", "Job"), here(jobs, endpoint, quick_digits(jobs.directory)))
        nodes = [start(jobs, pod, "--epochs=6") for pod in job]
        assert [node.wait(LONG_S) for node in nodes] == [0, 0, 0], nodes[0].text
        assert sum("test accuracy: 9" in node.text for node in nodes) == 1
        assert "world size 3" in nodes[0].text
        assert (jobs.directory / "checkpoints/digits.pt").exists()


def test_all_by_variables_and_a_secret(jobs: Cluster, etcd: etcd_kit.Cluster) -> None:
    script = block("slurm-and-kubernetes.md", "auth enable")
    commands = re.findall(r"^kubectl exec etcd-0 -- etcdctl (.*)$", script, re.MULTILINE)
    for command in commands:
        etcd.etcdctl(*shlex.split(command))
    secret = re.search(r"--from-literal=(\w+)=(\S+)", script)
    assert secret
    job = pods(one("job-pet.yaml", "Job"), here(jobs, etcd.endpoint, jobs.script("report.py")))

    (jobs.directory / "secret" / secret[1]).write_text("trainer:GUESS")
    assert "password" in error_of(start(jobs, job[0]), 77)

    (jobs.directory / "secret" / secret[1]).write_text(secret[2])
    nodes = [start(jobs, pod) for pod in job]
    assert [node.wait(LONG_S) for node in nodes] == [0, 0, 0], nodes[0].text
    assert [[(each["RANK"], each["WORLD_SIZE"]) for each in node.reports()] for node in nodes] == [
        [(str(index), "3")] for index in range(3)
    ]
