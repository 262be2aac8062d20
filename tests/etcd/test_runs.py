"""What a run leaves in etcd, what it leaves alone, and how long. Sessions at rest, forks: the conformance suite."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from kits.etcd.etcd_kit import Cluster
from kits.etcd.failover_kit import Subject, path_of
from kits.eventually import eventually
from kits.wire.session_peers import LONG, client_of, keys_of, opened

from rdzv_plugins.backends.etcd import coordination
from rdzv_plugins.backends.etcd.coordination import EtcdCoordination

TEN_MINUTES = 600


def test_a_run_whose_processes_were_all_killed_leaves_nothing_to_the_next_one(single: Cluster) -> None:
    with ExitStack() as killed:
        for number in range(2):
            killed.enter_context(client_of(single.endpoints, f"node/{number}", 10, kind="etcd"))
        left = EtcdCoordination(single.endpoints, "run")
        opened(left).put({"mine": b""}, timeout=LONG)
        left.close()
        found = single.keys("")
        assert {f"{path_of()}k/{key}" for key in ("node/0", "node/1", "mine")} < found.keys()
        assert 0 not in found.values(), "everything hangs on a lease"
        run_lease = found[f"{path_of()}k/mine"]
        assert f"granted with TTL({TEN_MINUTES}s)" in single.etcdctl("lease", "timetolive", f"{run_lease:x}")
    eventually(lambda: list(single.keys("")) == [f"{path_of()}k/mine"], lambda: str(single.keys("")))
    backend = EtcdCoordination(single.endpoints, "run")
    next_one = opened(backend, ttl=7.5)
    assert next_one.ttl == 8, "etcd counts in whole seconds"
    assert (next_one.local_addr, next_one.remote_addr) == ("127.0.0.1", "127.0.0.1")
    assert keys_of(next_one) == {}
    next_one.put({"new": b""}, timeout=LONG)
    beside = opened(EtcdCoordination(single.endpoints, "run"))
    assert keys_of(beside) == {"new": b""}, "only the first one clears up"
    beside.close()
    backend.close()
    assert single.keys("") == {}


def test_the_last_session_deletes_the_keys_of_its_run_and_of_no_other(single: Cluster) -> None:
    ids = ["job", "job2", "job/2", "job%2F2", "задание"]
    sessions = {run: opened(EtcdCoordination(single.endpoints, run)) for run in ids}
    sessions["other prefix"] = opened(EtcdCoordination(single.endpoints, "job", prefix="/rdzv-plugins/job"))
    for run, each in sessions.items():
        each.put({"k": run.encode(), "s/k": b""}, timeout=LONG)
    last = opened(EtcdCoordination(single.endpoints, "job"))
    sessions.pop("job").close()
    assert keys_of(last) == {"k": b"job", "s/k": b""}, "another session of the run is left"
    before = single.keys("").keys()
    last.close()
    mine = (f"{path_of('job')}k/", f"{path_of('job')}s/")
    assert before - single.keys("").keys() == {key for key in before if key.startswith(mine)}
    assert [keys_of(each) for each in sessions.values()] == [{"k": run.encode(), "s/k": b""} for run in sessions]
    for each in sessions.values():
        each.close()
    assert single.keys("") == {}


@pytest.mark.thorough
def test_lasting_keys_last_as_long_as_the_run(single: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than their lease does without being refreshed."""
    monkeypatch.setattr(coordination, "RUN_LEASE_S", 10)
    subject = Subject(single, ttl=10)
    subject.write()
    subject.outlive()
    subject.outlive()
    subject.check()
    subject.close()
