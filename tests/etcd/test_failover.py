"""A session goes on while members of its cluster go and come: its lease, its keys, its watches, its requests."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kits.etcd.etcd_kit import Cluster, Tls, Users, etcd
from kits.etcd.failover_kit import PREFIX, Subject, home, lead
from kits.eventually import eventually
from kits.wire.session_peers import LONG, keys_of, opened

from rdzv_plugins.backends.etcd.coordination import EtcdCoordination
from rdzv_plugins.backends.etcd.security import EtcdSecurity

T = LONG


@pytest.fixture
def subject(three: Cluster) -> Iterator[Subject]:
    subject = Subject(three)
    yield subject
    subject.close()


@pytest.mark.parametrize(
    ("how", "leads"), [("kill", True), pytest.param("stop", False, marks=pytest.mark.thorough)], ids=["kill", "stop"]
)
def test_its_own_member_goes_while_it_writes(three: Cluster, subject: Subject, how: str, leads: bool) -> None:
    member = home(three)
    others = [each for each in three.members if each is not member]
    lead(three, member if leads else others[0])
    with subject.busy():
        member.kill() if how == "kill" else member.stop()
    assert home(three) is not member
    subject.check()
    member.restart() if how == "kill" else member.cont()
    three.wait_quorum()
    if how == "kill" or not leads:  # else it may revoke leases that it believes to have run out (etcd's issue 15247)
        subject.check()


@pytest.mark.thorough
def test_its_own_member_goes_while_nothing_is_asked(three: Cluster, subject: Subject) -> None:
    """A stopped one is noticed by the keep-alives alone, in time for another member to be told."""
    member = home(three)
    lead(three, next(each for each in three.members if each is not member))  # an election would prolong the lease
    member.stop()
    subject.outlive()
    assert home(three) is not member
    subject.check()


@pytest.mark.thorough
def test_members_come_and_go_where_it_has_to_log_in_over_tls(tmp_path: Path) -> None:
    """A member that was restarted has forgotten who has logged in."""
    tls, users = Tls(tmp_path / "tls", client_auth=True), Users(prefix=PREFIX)
    security = EtcdSecurity(True, tls.cacert, tls.cert, tls.key, users.user, users.password)
    with etcd(tmp_path, members=3, tls=tls, users=users, heartbeat=20, election=200) as cluster:
        subject = Subject(cluster, security=security)
        with subject.busy():
            for member in cluster.members:
                member.kill()
                subject.goes_on()
                member.restart()
                cluster.wait_quorum()
        subject.check()
        subject.close()


@pytest.mark.thorough
def test_it_waits_for_a_quorum_and_is_the_same_session_then(three: Cluster, subject: Subject) -> None:
    for member in three.members:
        member.kill()
    with pytest.raises(TimeoutError, match=r"127\.0\.0\.1"):
        subject.session.put({"no": b"quorum"}, timeout=4)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(subject.write)
        for member in three.members[:2]:
            member.restart()
        three.wait_quorum()
        asked.result(T)
    subject.session.delete(["no"], timeout=T)  # it may have come to be later
    subject.check()


@pytest.mark.thorough
def test_a_counter_of_all_counts_each_step_once_while_members_go(three: Cluster) -> None:
    """Compare-and-put by four sessions: a step that was done and not reported, or reported and undone, would show."""
    backend, stop = EtcdCoordination(three.endpoints, "run"), threading.Event()
    sessions = [opened(backend) for _ in range(4)]
    steps = [0] * 4
    sessions[0].create("counter", b"0", timeout=T)

    def count(number: int) -> None:
        while not stop.is_set():
            ((counter, *_), _) = sessions[number].list("counter", timeout=LONG)
            following = {"counter": b"%d" % (int(counter.value) + 1)}
            if sessions[number].put(following, guard=counter, timeout=LONG) is not None:
                steps[number] += 1

    def all_count_on() -> None:
        since = list(steps)
        eventually(
            lambda: any(each.done() for each in counting) or all(map(int.__gt__, steps, since)),
            lambda: f"{since} {steps}",
        )

    with ThreadPoolExecutor(4) as pool:
        counting = [pool.submit(count, number) for number in range(4)]
        try:
            for member in three.members:
                for go, come in ((member.kill, member.restart), (member.stop, member.cont)):
                    go()
                    all_count_on()
                    come()
                    three.wait_quorum()
        finally:
            stop.set()
        for each in counting:
            each.result(LONG)
    assert keys_of(sessions[0]) == {"counter": b"%d" % sum(steps)}
    backend.close()


@pytest.mark.thorough
def test_certificates_are_read_again_for_each_new_connection(tmp_path: Path) -> None:
    """All are of a new authority: those of the member first, those of the node some time later."""
    theirs = Tls(tmp_path / "theirs", client_auth=True)
    mine = Path(shutil.copytree(tmp_path / "theirs", tmp_path / "mine"))
    files = (str(mine / Path(each).name) for each in (theirs.cacert, theirs.cert, theirs.key))
    with etcd(tmp_path, tls=theirs) as cluster:
        subject = Subject(cluster, ttl=LONG, security=EtcdSecurity(True, *files))
        (member,) = cluster.members
        member.kill()
        Tls(tmp_path / "theirs", client_auth=True)
        member.restart()
        eventually(lambda: "certificate" in subject.why(), subject.why)  # no longer that nobody listens
        shutil.copytree(tmp_path / "theirs", mine, dirs_exist_ok=True)
        subject.write()
        assert subject.losses.none
        subject.close()
