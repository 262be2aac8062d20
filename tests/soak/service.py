"""Where the nodes meet: ``rdzv serve`` on a host of its own, one of the nodes, or an etcd cluster of three hosts."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from kits.etcd.etcd_processes import NEEDED_MIB, Member
from kits.hosts.hosts import Host
from kits.wire.tls_kit import Issued

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.testing.processes import clean_environment, send
from rdzv_plugins.testing.services import data_directory
from soak import transcripts

PORT = 29400
_START_S = 60.0


class Service:
    """What a node serves itself; and the base of those that are apart."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def kill(self, target: str) -> None:
        raise NotImplementedError

    def start(self, target: str) -> None:
        """It is back, with its data where it has any; returns when it listens."""
        raise NotImplementedError

    def stop(self, target: str) -> None:
        raise NotImplementedError

    def cont(self, target: str) -> None:
        raise NotImplementedError

    def died(self) -> str:
        """What has ended by itself, and how; "" if nothing."""
        return ""

    def close(self) -> None:
        """Nothing of it is left."""


class Serve(Service):
    """One ``rdzv serve``."""

    def __init__(self, host: Host, directory: Path, conf: Sequence[str]) -> None:
        super().__init__(f"{host.address}:{PORT}")
        self._conf = ",".join(conf)
        self._host, self._directory = host, directory
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self.start("server")

    def start(self, target: str) -> None:
        command = [str(Path(sys.executable).parent / "rdzv"), "serve", f"--rdzv-endpoint={self.endpoint}"]
        command.append(f"--rdzv-conf={self._conf}")
        self._process = transcripts.start(
            [*self._host.enter(self._directory), *command],
            self._directory / "server.log",
            clean_environment(),
            self._directory,
        )
        self._killed = False
        _wait(lambda: self._host.listens(PORT) or self.died(), "rdzv serve does not listen")

    def kill(self, target: str) -> None:
        assert self._process
        self._killed = True
        self._process.kill()
        self._process.wait(_START_S)

    def stop(self, target: str) -> None:
        self._send(signal.SIGSTOP)

    def cont(self, target: str) -> None:
        self._send(signal.SIGCONT)

    def died(self) -> str:
        code = None if self._process is None or self._killed else self._process.poll()
        return "" if code is None else f"rdzv serve has ended with {code}"

    def close(self) -> None:
        self.kill("server")

    def _send(self, number: signal.Signals) -> None:
        assert self._process
        send(self._process.pid, number)


class _HostMember(Member):
    """A member of etcd on a host of its own."""

    def __init__(self, host: Host, directory: Path) -> None:
        super().__init__(host.name, directory, "http")
        self._host = host
        self.before = host.enter(directory)
        self.endpoint = Endpoint(host.address, 2379)
        self.url = f"http://{self.endpoint}"
        self.peer_url = f"http://{host.address}:2380"
        self.metrics_url = "http://127.0.0.1:2381"

    def _get(self, path: str) -> str:
        program = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"
        command = ["nsenter", f"--target={self._host.pid}", "--net", sys.executable, "-c", program]
        done = subprocess.run([*command, self.metrics_url + path], capture_output=True, text=True, timeout=30)
        return done.stdout if done.returncode == 0 else ""


class Etcd(Service):
    """Three members. At most one of them is away at a time."""

    def __init__(self, hosts: Sequence[Host], directory: Path) -> None:
        self._data = data_directory(directory, room_mib=NEEDED_MIB)
        self._members = {host.name: _HostMember(host, directory) for host in hosts}
        super().__init__(",".join(str(member.endpoint) for member in self._members.values()))
        token = uuid.uuid4().hex
        peers = ",".join(f"{member.name}={member.peer_url}" for member in self._members.values())
        for member in self._members.values():
            member.data = self._data / member.name
            member.start([f"--initial-cluster={peers}", f"--initial-cluster-token={token}"])
        for member in self._members.values():
            member.wait(member.healthy)

    def kill(self, target: str) -> None:
        self._members[target].kill()

    def start(self, target: str) -> None:
        self._members[target].restart()

    def stop(self, target: str) -> None:
        self._members[target].stop()

    def cont(self, target: str) -> None:
        self._members[target].cont()

    def close(self) -> None:
        for member in self._members.values():
            member.kill()
        shutil.rmtree(self._data, ignore_errors=True)


def secrets(hosts: Sequence[Host], directory: Path, *, token: bool, tls: bool) -> list[str]:
    """The token and the certificates of all hosts, as ``--rdzv-conf`` of a node and of ``rdzv serve`` names them."""
    conf = []
    if token:
        file = directory / "token"
        file.touch(0o600)
        file.write_text(f"{uuid.uuid4().hex}\n")
        conf.append(f"token_file={file}")
    if tls:
        names = [name for host in hosts for name in (host.name, host.address)]
        conf.append(Issued(directory / "tls", hosts=("127.0.0.1", "localhost", *names)).conf)
    return conf


def _wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _START_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(what)
        time.sleep(0.05)
