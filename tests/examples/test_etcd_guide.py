"""The commands of docs/guides/services.md, run: the set-ups are etcds, and jobs run there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kits.etcd import etcd_kit
from kits.etcd.etcd_processes import NEEDED_MIB, require_programs
from kits.eventually import eventually
from kits.examples.guides import block, here, run, start
from kits.launcher.harness import AgentProcess, Cluster, free_port

from rdzv_plugins.testing.builtin import data_directory

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(480)]
GUIDE = "services.md"


class Loopback:
    """The guide's three machines as addresses of this one, with ports and folders that are free."""

    def __init__(self, data: Path) -> None:
        self.client, self.peer, self.data = free_port(), free_port(), data

    def member(self, number: int, script: str) -> str:
        """What is to be done on that machine."""
        own = {"NAME=n1 HERE=10.0.0.11": f"NAME=n{number} HERE=10.0.0.1{number}"}
        return here(script, own)

    def here(self, text: str, folder: str = "") -> str:
        text = text.replace(":2379", f":{self.client}").replace(":2380", f":{self.peer}")
        return text.replace("10.0.0.", "127.0.0.").replace("/var/lib/rdzv-etcd", str(self.data / folder))


@contextmanager
def three_members(jobs: Cluster, certificate: str = "", tls: str = "") -> Iterator[Loopback]:
    """As the guide starts them; for TLS with a certificate that this script makes, and these flags."""
    require_programs()
    data = data_directory(jobs.directory, room_mib=NEEDED_MIB)
    loopback = Loopback(data)
    script = block(GUIDE, "--initial-cluster=")
    if tls:
        for number in (1, 2, 3):
            # a member asks whether the address that another one comes from is in its certificate: here 127.0.0.1
            own = loopback.here(loopback.member(number, here(certificate, {"IP:%s": "IP:%s,IP:127.0.0.1"})))
            run(own, jobs.directory)
        script = here(script, {"http://": "https://"}).rstrip() + " \\\n" + tls
    members: list[AgentProcess] = []
    try:
        for number in (1, 2, 3):
            own = loopback.here(loopback.member(number, script), f"n{number}")
            members.append(start(jobs, own))
        yield loopback
    finally:
        for member in members:
            jobs.kill(member.pid)
            member.process.wait(60)
        shutil.rmtree(data, ignore_errors=True)


def two_nodes(jobs: Cluster, command: str, **env: str) -> None:
    """A job by the guide's command; its workers see both nodes."""
    command = here(command, {"--nnodes=2:4": "--nnodes=2", "train.py": f"{jobs.script('plain.py')} env WORLD_SIZE"})
    nodes = [start(jobs, command, **env) for _ in range(2)]
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].text + nodes[1].text
    assert all("WORLD_SIZE=2" in node.text for node in nodes)


def test_three_machines(jobs: Cluster, tmp_path: Path) -> None:
    with three_members(jobs) as loopback:
        health = loopback.here(block(GUIDE, "endpoint health")).strip()
        eventually(lambda: run(f"{health} || true", tmp_path).count("is healthy") == 3)
        doctor = loopback.here(block(GUIDE, "rdzv doctor")).strip()
        looked = run(f"{doctor} || true", tmp_path)  # what may be wrong with this machine is another matter
        assert "ok       members: 3 members, of which 1 may be lost" in looked
        assert looked.count("; answers in ") == 3
        two_nodes(jobs, loopback.here(block(GUIDE, "10.0.0.13:2379 --rdzv-id=job-1")))


def test_users(jobs: Cluster, etcd: etcd_kit.Cluster, tmp_path: Path) -> None:
    members = "10.0.0.11:2379,10.0.0.12:2379,10.0.0.13:2379"
    run(here(block(GUIDE, "auth enable"), {members: etcd.endpoint}), tmp_path)
    file, *commands = block(GUIDE, ".rdzv-etcd\n").rsplit("\n", 3)[:3]
    run(file, tmp_path, HOME=str(tmp_path))
    assert (tmp_path / ".rdzv-etcd").stat().st_mode & 0o777 == 0o600
    assert len(commands) == 2
    for command in commands:
        two_nodes(jobs, here(command, {"10.0.0.11:2379": etcd.endpoint}), HOME=str(tmp_path))
    may = f"etcdctl --endpoints={etcd.endpoint} --user=trainer:PASSWORD"
    run(f"{may} get --prefix /rdzv-plugins/", tmp_path)
    for elsewhere in (f"{may} put /other x", f"{may} get --prefix /", f"{may} user list"):
        with pytest.raises(AssertionError, match="permission denied"):
            run(elsewhere, tmp_path)


def test_tls(jobs: Cluster, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl: apt-get install openssl")
    authority, certificate = re.split("(?=NAME=)", block(GUIDE, "openssl"))
    run(authority, tmp_path)
    with three_members(jobs, certificate, block(GUIDE, "--peer-cert-file")) as loopback:
        two_nodes(jobs, loopback.here(block(GUIDE, "https://10.0.0.11:2379")))


def test_an_etcd_that_is_full_takes_writes_again(tmp_path: Path) -> None:
    with etcd_kit.etcd(tmp_path, arguments=[f"--quota-backend-bytes={8 << 20}"]) as etcd:
        value = tmp_path / "value"
        value.write_text("x" * (1 << 20))
        fill = f"for i in $(seq 20); do etcdctl put key < {value}; done"
        with pytest.raises(AssertionError, match="space exceeded"):
            run(fill, tmp_path, ETCDCTL_ENDPOINTS=etcd.endpoint)
        run(block(GUIDE, "defrag"), tmp_path, ETCDCTL_ENDPOINTS=etcd.endpoint)
        etcd.etcdctl("put", "key", "value")
