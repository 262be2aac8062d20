"""A session goes on while members of its cluster go and come: its lease, its keys, its watches, its requests."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from kits.etcd.etcd_kit import Cluster, Tls, Users, etcd
from kits.etcd.failover_kit import PREFIX, Observed, SessionAt, home, lead
from kits.eventually import eventually

from rdzv_plugins.kit.security import Security
from rdzv_plugins.testing.parts import LONG, keys_of

T = LONG


@pytest.mark.parametrize(
    ("how", "leads", "busy"),
    [
        ("kill", True, True),
        pytest.param("stop", False, True, marks=pytest.mark.thorough),
        # noticed by the keep-alives alone, in time for another member to be told; an election would prolong the lease
        pytest.param("stop", False, False, marks=pytest.mark.thorough),
    ],
)
def test_its_own_member_goes_while_it_writes(
    three: Cluster, observed: Observed, how: str, leads: bool, busy: bool
) -> None:
    subject = observed(three)
    member = home(three)
    lead(three, member if leads else next(each for each in three.members if each is not member))
    with subject.busy() if busy else nullcontext():
        member.kill() if how == "kill" else member.stop()
        if not busy:
            subject.outlive()
    assert home(three) is not member
    subject.check()
    member.restart() if how == "kill" else member.cont()
    three.wait_quorum()
    if how == "kill" or not leads:  # else it may revoke leases that it believes to have run out (etcd's issue 15247)
        subject.check()


@pytest.mark.thorough
def test_members_come_and_go_where_it_has_to_log_in_over_tls(tmp_path: Path, observed: Observed) -> None:
    """A member that was restarted has forgotten who has logged in."""
    tls, users = Tls(tmp_path / "tls", client_auth=True), Users(prefix=PREFIX)
    security = Security(True, tls.cacert, tls.cert, tls.key, users.user, users.password)
    with etcd(tmp_path, members=3, tls=tls, users=users, heartbeat=20, election=200) as cluster:
        subject = observed(cluster, security=security)
        with subject.busy():
            for member in cluster.members:
                member.kill()
                subject.goes_on()
                member.restart()
                cluster.wait_quorum()
        subject.check()


@pytest.mark.thorough
def test_it_waits_for_a_quorum_and_is_the_same_session_then(three: Cluster, observed: Observed) -> None:
    subject = observed(three)
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
def test_a_counter_of_all_counts_each_step_once_while_members_go(three: Cluster, session_at: SessionAt) -> None:
    """Compare-and-put by four sessions: a step that was done and not reported, or reported and undone, would show."""
    stop = threading.Event()
    sessions = [session_at(three.endpoints) for _ in range(4)]
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


@pytest.mark.thorough
def test_certificates_are_read_again_for_each_new_connection(tmp_path: Path, observed: Observed) -> None:
    """All are of a new authority: those of the member first, those of the node some time later."""
    theirs, mine = (Tls(tmp_path / name, client_auth=True) for name in ("theirs", "mine"))
    with etcd(tmp_path, tls=theirs) as cluster:
        subject = observed(cluster, ttl=LONG, security=Security(True, mine.cacert, mine.cert, mine.key))
        (member,) = cluster.members
        member.kill()
        Tls(tmp_path / "theirs", by="another")
        member.restart()
        eventually(lambda: "certificate" in subject.why(), subject.why)  # no longer that nobody listens
        Tls(tmp_path / "mine", by="another")
        subject.write()
