"""The clusters that the tests are made with: what they say of themselves is so."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.etcd.etcd_kit import Cluster, Member, Tls, Users, etcd
from kits.etcd.failover_kit import lead
from kits.eventually import eventually


def test_three_members_go_on_when_the_leader_is_killed_and_take_it_back(three: Cluster) -> None:
    three.etcdctl("put", "/a/1", "x")
    old = three.leader
    old.kill()
    assert not old.alive
    three.wait_quorum()
    new = three.leader
    assert new is not old
    assert list(three.keys("/a/")) == ["/a/1"]
    old.restart()
    three.wait_quorum()
    check_that_it_follows(three, old, new)


def test_a_stopped_leader_is_replaced_and_comes_back_as_a_follower(three: Cluster) -> None:
    old = three.leader
    old.stop()
    assert old.alive
    three.wait_quorum()
    new = three.leader
    assert new is not old
    old.cont()
    three.wait_quorum()
    check_that_it_follows(three, old, new)


def check_that_it_follows(cluster: Cluster, old: Member, new: Member) -> None:
    """``old`` does, once ``new`` leads."""
    lead(cluster, new)  # on a busy machine the old one may have been elected again
    eventually(lambda: len(cluster.followers) == 2 and old in cluster.followers, lambda: cluster.leader.name)


def test_without_a_quorum_a_restarted_member_listens_and_is_not_healthy(three: Cluster) -> None:
    for member in three.members:
        member.kill()
    three.members[0].restart()
    assert not three.members[0].healthy()
    three.members[1].restart()
    three.wait_quorum()
    assert three.leader in three.members[:2]


def test_what_is_counted(single: Cluster) -> None:
    before = single.count("Range", "Txn"), single.count("Put"), single.count()
    single.etcdctl("put", "a", "b")
    single.etcdctl("get", "a")
    assert (single.count("Range", "Txn"), single.count("Put"), single.count()) == (
        before[0] + 1,
        before[1] + 1,
        before[2] + 2,
    )
    assert single.counts()["Put"] == 1


def test_keys_come_with_their_leases(single: Cluster) -> None:
    lease = single.etcdctl("lease", "grant", "100").split()[1]
    single.etcdctl("put", f"--lease={lease}", "/k/leased", "")
    single.etcdctl("put", "/k/free", "")
    single.etcdctl("put", "/other", "")
    assert single.keys("/k/") == {"/k/free": 0, "/k/leased": int(lease, 16)}
    assert single.keys("/none") == {}


@pytest.mark.parametrize("client_auth", [False, True])
def test_tls_and_users(tmp_path: Path, client_auth: bool) -> None:
    tls = Tls(tmp_path / "tls", client_auth=client_auth)
    users = Users(prefix="/mine")
    with etcd(tmp_path, tls=tls, users=users) as cluster:
        assert cluster.endpoint.startswith("https://127.0.0.1:")
        cluster.etcdctl("put", "/mine/k", "")
        assert list(cluster.keys("/")) == ["/mine/k"]
        with pytest.raises(AssertionError, match="permission denied"):
            cluster.etcdctl("put", "/other", "", user=f"{users.user}:{users.password}")
        with pytest.raises(AssertionError, match="invalid user ID or password"):
            cluster.etcdctl("get", "/mine/k", user=f"{users.user}:wrong")
        if client_auth:
            with pytest.raises(AssertionError, match=r"bad certificate|certificate required|context deadline exceeded"):
                cluster.etcdctl("--dial-timeout=1s", "get", "/mine/k", certificate=False)
