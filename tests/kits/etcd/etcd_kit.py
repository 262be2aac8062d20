"""Real etcd processes on loopback: one member or several, with TLS and users where a test wants them.

``with etcd(tmp_path, members=3) as cluster: cluster.leader.kill(); cluster.wait_quorum()``
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kits.etcd.etcd_processes import NEEDED_MIB, Member, environment, require_programs
from kits.eventually import eventually
from kits.hosts.hosts import Host
from kits.wire.tls_kit import Issued
from rdzv_plugins.testing.builtin import data_directory, etcd_messages

__all__ = ["Cluster", "Member", "Tls", "Users", "etcd"]

IN_USE = "address already in use"
IN_AN_ELECTION = re.compile("etcdserver: (request timed out|leader changed|no leader)")
"""What members may say at any time, for on a busy machine they elect a leader whenever one was too slow."""


@dataclass(frozen=True)
class Users:
    """Who may do what, once authentication is on: ``user`` may read and write under ``prefix``, and nothing else."""

    prefix: str = "/rdzv-plugins"
    user: str = "node"
    password: str = "the password of a node"
    root_password: str = "the password of root"


class Tls:
    """Certificates of the members (127.0.0.1, localhost) and of a client, by the authority called ``by``.

    ``client_auth``: members want the client's certificate.
    """

    def __init__(self, directory: Path, *, client_auth: bool = False, by: str = "ours") -> None:
        self.client_auth = client_auth
        server, client = (Issued(directory / name, by=by) for name in ("server", "client"))
        for each in (server, client):
            each.trust(by)
        self.server_cert, self.server_key = server.cert, server.key
        self.cacert, self.cert, self.key = str(client.cacert), str(client.cert), str(client.key)

    def arguments(self) -> list[str]:
        """Of a member."""
        arguments = [f"--cert-file={self.server_cert}", f"--key-file={self.server_key}"]
        if self.client_auth:
            arguments += ["--client-cert-auth", f"--trusted-ca-file={self.cacert}"]
        return arguments


class Cluster:
    """Members that are one etcd. ``endpoint`` is what goes into --rdzv-endpoint."""

    def __init__(self, members: Sequence[Member], tls: Tls | None, users: Users | None) -> None:
        self.members = members
        self.tls = tls
        self.users = users
        self._users_are_on = False
        self.endpoints = [member.endpoint for member in members]
        self.endpoint = ",".join(member.url if tls else str(member.endpoint) for member in members)

    @property
    def leader(self) -> Member:
        """The member that leads now; waits for one."""

        def leaders() -> list[Member]:  # one that was stopped until now may think that it still is
            found = [member for member in self.members if member.leads()]
            return found if len(found) == 1 else []

        found: list[Member] = eventually(leaders, self._state)
        return found[0]

    def wait_quorum(self) -> None:
        """Until there is a leader and each running member can commit."""
        running = [member for member in self.members if member.runs]
        assert 2 * len(running) > len(self.members), "no quorum without a restart"
        eventually(lambda: all(member.healthy() for member in running), self._state)
        assert self.leader

    def count(self, method: str) -> int:
        """How often the running members were asked that (``LeaseKeepAlive``); one that was restarted begins at 0."""
        running = [each for each in self.members if each.runs]
        return sum(etcd_messages(eventually(member.metrics, self._state))[method] for member in running)

    def keys(self, prefix: str = "") -> dict[str, int]:
        """All keys with the prefix now, in their order, and the lease of each (0: none)."""
        found = json.loads(self.etcdctl("get", "--prefix", "--write-out=json", prefix)).get("kvs", ())
        return {base64.b64decode(each["key"]).decode(): each.get("lease", 0) for each in found}

    def put_fuse(self, key: str, seconds: int) -> None:
        """A key that nobody keeps alive: it ends as a session does that has begun now."""

        def put() -> bool:
            lease = self.etcdctl("lease", "grant", str(seconds)).split()[1]
            try:
                self.etcdctl("put", f"--lease={lease}", key, "")
            except AssertionError as error:
                if "requested lease not found" in str(error):  # it took longer than that to come here
                    return False
                raise
            return True

        eventually(put, self._state)

    def etcdctl(self, *arguments: str, only: Member | None = None) -> str:
        """What etcdctl prints, as root, asked of the members that run, or ``only`` of that one."""
        urls = only.url if only else ",".join(member.url for member in self.members if member.runs)
        command = ["etcdctl", f"--endpoints={urls}", "--dial-timeout=20s", "--command-timeout=40s"]
        if self.tls:
            command += [f"--cacert={self.tls.cacert}"]
            if self.tls.client_auth:
                command += [f"--cert={self.tls.cert}", f"--key={self.tls.key}"]
        own = environment()
        if self.users and self._users_are_on:
            own["ETCDCTL_USER"] = f"root:{self.users.root_password}"

        def ask() -> subprocess.CompletedProcess[str] | None:
            done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, env=own)
            return done if done.returncode == 0 or not IN_AN_ELECTION.search(done.stderr) else None

        done: subprocess.CompletedProcess[str] = eventually(ask, self._state)
        assert done.returncode == 0, f"etcdctl {arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def fill(self) -> None:
        """Until it takes no more writes: for one with little room, ``--quota-backend-bytes``."""
        for _ in range(30):
            with contextlib.suppress(AssertionError):  # that there is no space left
                self.etcdctl("put", "rubbish", "x" * 120_000)  # more is too long for a command line
        assert "NOSPACE" in self.etcdctl("alarm", "list")

    def make_room(self) -> None:
        """As the documentation says."""
        revision = self.etcdctl("endpoint", "status", "--write-out=fields").partition('"Revision" : ')[2].split()[0]
        self.etcdctl("compact", "--physical", revision)
        self.etcdctl("defrag")
        self.etcdctl("alarm", "disarm")

    def _switch_users_on(self, users: Users) -> None:
        self.etcdctl("user", "add", f"root:{users.root_password}")
        self.etcdctl("user", "grant-role", "root", "root")
        self.etcdctl("user", "add", f"{users.user}:{users.password}")
        self.etcdctl("role", "add", "nodes")
        self.etcdctl("role", "grant-permission", "--prefix=true", "nodes", "readwrite", users.prefix)
        self.etcdctl("user", "grant-role", users.user, "nodes")
        self.etcdctl("auth", "enable")
        self._users_are_on = True

    def _state(self) -> str:
        return "\n".join(
            f"{member.name} alive={member.alive} stopped={member.stopped} healthy={member.healthy()} "
            f"leads={member.leads()} log:\n{member.log.read_text(errors='replace')[-1500:]}"
            for member in self.members
        )


@contextmanager
def etcd(
    directory: Path,
    *,
    members: int = 1,
    tls: Tls | None = None,
    users: Users | None = None,
    heartbeat: int | None = None,
    election: int | None = None,
    arguments: Sequence[str] = (),
    hosts: Sequence[Host] = (),
) -> Iterator[Cluster]:
    """A cluster that is ready, gone with the ``with`` block. Its logs are in ``directory``, several clusters may be.

    With ``hosts`` each has one of the members, by its name.

    ``heartbeat``, ``election``: etcd's intervals in milliseconds (its defaults: 100, 1000). A lease is granted for at
    least 1.5 times the election time-out, in whole seconds: at least 2 by default, at least 1 with 20 and 200.
    """
    require_programs()
    arguments = list(arguments)
    arguments += [f"--heartbeat-interval={heartbeat}"] if heartbeat else []
    arguments += [f"--election-timeout={election}"] if election else []
    arguments += tls.arguments() if tls else []
    logs = Path(tempfile.mkdtemp(prefix="etcd-", dir=directory))
    data = data_directory(logs, room_mib=NEEDED_MIB)
    started: list[Member] = []
    try:
        for _ in range(3):  # others look for free ports at the same time
            scheme = "https" if tls else "http"
            started = [Member(each.name, logs, scheme, each) for each in hosts]
            started = started or [Member(f"m{number}", logs, scheme) for number in range(members)]
            started = _start(started, data, arguments)
            if started:
                break
        assert started, "no free ports"
        cluster = Cluster(started, tls, users)
        cluster.wait_quorum()
        if users:
            cluster._switch_users_on(users)
        yield cluster
    finally:
        for member in started:
            member.kill()
        shutil.rmtree(data, ignore_errors=True)


def _start(members: list[Member], data: Path, arguments: Sequence[str]) -> list[Member]:
    """All of them, listening; none where a port was taken from under one."""
    token = uuid.uuid4().hex  # or clusters on the same ports would have the same id
    cluster = ",".join(f"{member.name}={member.peer_url}" for member in members)
    for member in members:
        member.data = data / f"{member.name}-{token}"
        member.start([f"--initial-cluster={cluster}", f"--initial-cluster-token={token}", *arguments])
    try:
        for member in members:
            member.wait(member.metrics)
    except BaseException as error:
        for member in members:
            member.kill()
        if isinstance(error, AssertionError) and any(IN_USE in member.log.read_text() for member in members):
            return []
        raise
    return members
