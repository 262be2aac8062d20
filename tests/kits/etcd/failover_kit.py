"""A session under observation, on a cluster whose members come and go."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import pytest

from kits.etcd.etcd_kit import Cluster, Member
from kits.eventually import eventually
from rdzv_plugins.backends.etcd.coordination import EtcdCoordination
from rdzv_plugins.coordination import Session
from rdzv_plugins.kit.security import Security
from rdzv_plugins.testing.parts import LONG, Losses, Recorder, keys_of, opened

PREFIX = "/rdzv-plugins"
_ESTABLISHED = "01"


def home(cluster: Cluster) -> Member:
    """The member that this process is connected to, with a single session."""

    def connected() -> list[Member]:
        files = {_target(path) for path in Path("/proc/self/fd").iterdir()}
        tables = [Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6")]  # gRPC takes IPv6 for both
        lines = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
        mine = [line for line in lines if line[3] == _ESTABLISHED and f"socket:[{line[9]}]" in files]
        ports = {int(line[2].partition(":")[2], 16) for line in mine}
        return [member for member in cluster.members if member.endpoint.port in ports]

    def only_one() -> Member | None:
        found = connected()
        return found[0] if len(found) == 1 else None

    one: Member = eventually(only_one, lambda: f"connected to {[each.name for each in connected()]}")
    return one


def _target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""


def lead(cluster: Cluster, member: Member) -> None:
    """Make it the leader."""
    status = json.loads(cluster.etcdctl("endpoint", "status", "--write-out=json"))
    numbers = {each["Endpoint"]: each["Status"]["header"]["member_id"] for each in status}

    def leads() -> bool:
        if cluster.leader is not member:
            with suppress(AssertionError):  # refused, for there was an election meanwhile
                cluster.etcdctl("move-leader", f"{numbers[member.url]:x}")
        return cluster.leader is member

    eventually(leads, lambda: f"{cluster.leader.name} leads")


def path_of(run: str = "run") -> str:
    """Where the keys of a run lie."""
    return f"{PREFIX}/{run}/"


class Subject:
    """A session with an ephemeral key, a watch and requests of its own. The run's path is ``path``."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        ttl: float = 10,
        outage_timeout: float = LONG,
        run: str = "run",
        security: Security | None = None,
    ) -> None:
        self.cluster, self.path = cluster, path_of(run)
        self.losses, self.recorder = Losses(), Recorder()
        self.security = security or Security()
        self.backend = EtcdCoordination(cluster.endpoints, run, security=self.security, outage_timeout=outage_timeout)
        self.session = opened(self.backend, ttl, self.losses)
        self.session.put({"mine": b"here"}, ephemeral=True, timeout=LONG)
        (self.lease,) = {lease for key, lease in cluster.keys(self.path).items() if key.endswith("/k/mine")}
        self.session.watch("", self.recorder, timeout=LONG)
        self.recorder.take(1)
        self.written = self.fuses = 0

    def write(self) -> None:
        """The next number."""
        assert self.session.put({f"n/{self.written}": b"%d" % self.written}, timeout=LONG)
        self.written += 1

    def why(self) -> str:
        """What is wrong, as a request says that nobody answers in time; it may have put the key ``no``."""
        with pytest.raises(TimeoutError) as raised:
            self.session.put({"no": b""}, timeout=2)
        return str(raised.value)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """It writes all the time, and at least once after what happens meanwhile."""
        stop, before = threading.Event(), self.written

        def work() -> None:
            while not stop.is_set():
                self.write()

        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)
            try:
                eventually(lambda: working.done() or self.written > before + 10, lambda: f"{self.written} written")
                yield
                self.goes_on()
            finally:
                stop.set()
            working.result(LONG)

    def goes_on(self) -> None:
        """Its writer is answered."""
        since = self.written
        eventually(lambda: self.written >= since + 10, lambda: f"{self.written} written, {since} before")

    def outlive(self) -> None:
        """It has lived for longer than it does without being refreshed: a lease that began now has run out."""
        self.fuses += 1
        fuse = f"fuse {self.fuses}"
        self.cluster.put_fuse(f"{self.path}k/{fuse}", int(self.session.ttl))
        self.recorder.until(lambda events: any(each.key == fuse and each.value is None for each in events))

    def check(self) -> None:
        """It is the session that it was: nothing lost, nothing told twice, and it is kept alive."""
        self.write()
        self.outlive()
        assert self.losses.none, str(self.losses.next())
        assert self.cluster.keys(self.path)[f"{self.path}k/mine"] == self.lease
        found = keys_of(self.session)
        assert found == {"mine": b"here"} | {f"n/{number}": b"%d" % number for number in range(self.written)}
        self.write()
        last = (f"n/{self.written - 1}", b"%d" % (self.written - 1))
        told = self.recorder.until(lambda events: (events[-1].key, events[-1].value) == last)
        assert [(each.key, each.value, each.revision) for each in told] == self._history(), "as etcd remembers it"

    def _history(self) -> list[tuple[str, bytes | None, int]]:
        """Every change of the run's keys since it was opened, by a watch that has seen no member go."""
        observer = EtcdCoordination([self.cluster.leader.endpoint], "run", security=self.security)
        recorder = Recorder()
        opened(observer).watch("", recorder, after=self.recorder.events[0].revision - 1, timeout=LONG)
        count = len(self.recorder.events)
        events = recorder.until(lambda events: len(events) >= count)
        observer.close()
        return [(each.key, each.value, each.revision) for each in events]

    def close(self) -> None:
        self.backend.close()


Observed: TypeAlias = Callable[..., Subject]
"""The fixture ``observed``."""
SessionAt: TypeAlias = Callable[..., Session]
"""The fixture ``session_at``."""
