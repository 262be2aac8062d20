"""A session goes on while members of its cluster go and come: its lease, its keys, its watches, its requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from kits.etcd.etcd_kit import Cluster, Tls, Users, etcd
from kits.etcd.failover_kit import PREFIX, Observed, home, lead
from kits.eventually import eventually

from rdzv_plugins.kit.security import Security
from rdzv_plugins.testing.parts import LONG

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
