"""What a run leaves in etcd, what it leaves alone, and what a session asks of etcd while nobody asks it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kits.etcd.etcd_kit import Cluster
from kits.etcd.failover_kit import Subject, path_of
from kits.eventually import eventually
from kits.launcher.clock_ahead import ahead
from kits.wire.attack_kit import read_line
from kits.wire.coordination_kit import LONG, Losses, client_of, keys_of, leave, opened
from kits.wire.processes import spawned
from kits.wire.wire_client import PATIENCE

from rdzv_plugins.backends.etcd import leases, session
from rdzv_plugins.backends.etcd.coordination import EtcdCoordination

T = LONG
TEN_MINUTES = 600


@contextmanager
def etcd_client(cluster: Cluster, mode: str, ttl: float) -> Iterator[subprocess.Popen[str]]:
    endpoints = [(each.host, each.port) for each in cluster.endpoints]
    script = Path(__file__).parent / "workers" / "etcd_client.py"
    options = json.dumps({"endpoints": endpoints, "mode": mode, "ttl": ttl})
    with spawned([[sys.executable, script, options]]) as (process,):
        assert read_line(process) == "ready\n"
        yield process


def test_a_run_whose_processes_were_all_killed_leaves_nothing_to_the_next_one(single: Cluster) -> None:
    with ExitStack() as killed:
        for number in range(2):
            killed.enter_context(client_of(single.endpoints, f"node/{number}", 10, kind="etcd"))
        killed.enter_context(etcd_client(single, "lasting", 10))
        found = single.keys("")
        assert {f"{path_of()}k/{key}" for key in ("node/0", "node/1", "mine")} < found.keys()
        assert 0 not in found.values(), "everything hangs on a lease"
        run_lease = found[f"{path_of()}k/mine"]
        assert f"granted with TTL({TEN_MINUTES}s)" in single.etcdctl("lease", "timetolive", f"{run_lease:x}")
    eventually(lambda: list(single.keys("")) == [f"{path_of()}k/mine"], lambda: str(single.keys("")))
    backend = EtcdCoordination(single.endpoints, "run")
    next_one = opened(backend)
    assert keys_of(next_one) == {}
    next_one.put({"new": b""}, timeout=T)
    beside = opened(EtcdCoordination(single.endpoints, "run"))
    assert keys_of(beside) == {"new": b""}, "only the first one clears up"
    beside.close()
    backend.close()
    assert single.keys("") == {}


def test_the_last_session_deletes_the_keys_of_its_run_and_of_no_other(single: Cluster) -> None:
    ids = ["job", "jo", "job2", "job/2", "job%2F2", "job/", "/job", "job/k/", "Job", "задание", "a b"]
    backends = {run: EtcdCoordination(single.endpoints, run) for run in ids}
    sessions = {run: opened(backend) for run, backend in backends.items()}
    others = opened(EtcdCoordination(single.endpoints, "job", prefix="/rdzv-plugins/job"))
    for run, each in sessions.items():
        each.put({"k": run.encode(), "s/k": b""}, timeout=T)
    others.put({"k": b"another prefix"}, timeout=T)
    assert [keys_of(each) for each in sessions.values()] == [{"k": run.encode(), "s/k": b""} for run in ids]
    last = opened(EtcdCoordination(single.endpoints, "job"))
    sessions.pop("job").close()
    assert keys_of(last) == {"k": b"job", "s/k": b""}, "another session of the run is left"
    before = single.keys("").keys()
    last.close()
    gone = before - single.keys("").keys()
    mine = (f"{path_of('job')}k/", f"{path_of('job')}s/")
    assert gone == {key for key in before if key.startswith(mine)}
    assert [keys_of(each) for each in sessions.values()] == [{"k": run.encode(), "s/k": b""} for run in sessions]
    assert keys_of(others) == {"k": b"another prefix"}
    for each in (*sessions.values(), others):
        each.close()
    assert single.keys("") == {}


@pytest.mark.thorough
def test_sessions_that_come_and_go_at_once_delete_nothing_of_those_that_stay(single: Cluster) -> None:
    wrong: list[object] = []

    def come_and_go(number: int) -> None:
        backend = EtcdCoordination(single.endpoints, "run")
        try:
            for count in range(20):
                session = opened(backend)
                key = f"{number}/{count}"
                session.put({key: b""}, timeout=T)
                if key not in keys_of(session):
                    wrong.append(key)
                session.close()
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert wrong == []
    assert single.keys("") == {}


@pytest.mark.thorough
def test_lasting_keys_last_as_long_as_the_run(single: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than their lease does without being refreshed."""
    for module in (session, leases):
        monkeypatch.setattr(module, "RUN_LEASE_S", 10)
    subject = Subject(single, ttl=10)
    subject.write()
    subject.outlive()
    subject.outlive()
    subject.check()
    subject.close()


@pytest.mark.thorough
def test_an_idle_session_asks_nothing_but_to_stay_alive(single: Cluster) -> None:
    subjects = [Subject(single, ttl=15) for _ in range(5)]
    for subject in subjects:
        subject.write()
    single.put_fuse(f"{path_of()}k/fuse", 15)
    before = single.counts()
    for subject in subjects:
        subject.recorder.until(lambda events: (events[-1].key, events[-1].value) == ("fuse", None))
    after = single.counts()
    asked = {
        method: after[method] - before.get(method, 0) for method in after if after[method] != before.get(method, 0)
    }
    assert asked.keys() == {"LeaseKeepAlive"}
    for subject in subjects:
        subject.close()


@pytest.mark.thorough
def test_a_forked_child_cannot_use_its_parents_session_and_does_not_disturb_it(single: Cluster) -> None:
    watcher = opened(EtcdCoordination(single.endpoints, "run"))
    with etcd_client(single, "forks", 10) as process:
        met = json.loads(read_line(process))
        assert met[-1] == "done", "closing is never an error"
        assert all(each.startswith("ConnectionLost: ") and "parent" in each for each in met[:-1]), met
        assert json.loads(read_line(process)) == ["mine", "parent's"]
        subject = Subject(single, ttl=10, run="fuse")
        subject.outlive()
        assert keys_of(watcher) == {"mine": b"", "parent's": b""}
        leave(process)
        assert process.stdout
        assert process.stdout.read() == "", "and nothing else is said"
    assert keys_of(watcher) == {"parent's": b""}
    subject.close()
    watcher.close()


@dataclass
class Clock:
    """The wall clock of processes with this ``environment``: an hour ahead while there is that file."""

    environment: dict[str, str]
    file: Path

    def move(self, where: str) -> None:
        before = self.now()
        self.file.touch() if where == "ahead" else self.file.unlink()
        assert abs(self.now() - before) >= 3600 - PATIENCE, "the library works"

    def now(self) -> int:
        return int(subprocess.check_output(["date", "+%s"], env=self.environment))


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    directory = tmp_path_factory.mktemp("clock")
    file = directory / "jump"
    return Clock(ahead(directory) | {"CLOCK_AHEAD_WHILE": str(file)}, file)


@pytest.mark.thorough
def test_a_wall_clock_that_jumps_by_an_hour_changes_nothing(single: Cluster, clock: Clock) -> None:
    """There and back, and even while etcd is away, when time is measured."""
    watcher, losses = EtcdCoordination(single.endpoints, "run"), Losses()
    session = opened(watcher, LONG, losses)
    with client_of(single.endpoints, "node", 10, kind="etcd", environment=clock.environment) as process:
        subject = Subject(single, ttl=10, run="fuse")
        for where in ("ahead", "back"):
            clock.move(where)
            subject.outlive()
            assert keys_of(session) == {"node": b"here"}
        (member,) = single.members
        for where in ("ahead", "back"):
            member.kill()
            clock.move(where)
            member.restart()
            single.wait_quorum()
            subject.outlive()
            assert keys_of(session) == {"node": b"here"}
        leave(process)
        assert process.stdout
        assert "lost" not in process.stdout.read()
    assert keys_of(session) == {}
    assert losses.none
    subject.close()
    watcher.close()
