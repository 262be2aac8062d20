"""An etcd that answers, and refuses for now: it is full, or its user has another password. It is waited for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kits.etcd.etcd_kit import Cluster, Users, etcd
from kits.etcd.failover_kit import Observed, SessionAt, Subject
from kits.eventually import eventually

from rdzv_plugins.backends.etcd import ACCOUNT
from rdzv_plugins.backends.etcd.coordination import EtcdCoordination
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable
from rdzv_plugins.kit.security import Security
from rdzv_plugins.testing.parts import LONG, Losses


def test_writes_wait_for_space_and_sessions_live_meanwhile(
    small: Cluster, observed: Observed, session_at: SessionAt
) -> None:
    subject = observed(small)
    small.fill()
    with pytest.raises(TimeoutError, match="mvcc: database space exceeded"):
        subject.session.create("other", b"", timeout=0.5)
    with ThreadPoolExecutor() as pool:
        written = pool.submit(subject.session.put, {"k": b"v"}, timeout=LONG)
        with pytest.raises(EndpointUnreachable, match="mvcc"):
            EtcdCoordination(small.endpoints, "other").open_session(4, on_lost=Losses(), timeout=1)
        comes = pool.submit(session_at, small.endpoints, ttl=4, outage_timeout=LONG)
        with pytest.raises(TimeoutError, match="mvcc: database space exceeded"):
            subject.session.create("other", b"", timeout=0.5)
        assert [kv.key for kv in subject.session.list("", timeout=LONG)[0]] == ["mine"], "reads are answered"
        before = small.count("LeaseKeepAlive")
        eventually(lambda: small.count("LeaseKeepAlive") >= before + 4, lambda: "nobody keeps the lease alive")
        assert not written.done()
        assert not comes.done()
        small.make_room()
        assert written.result(LONG)
        comes.result(LONG)
    subject.write()


@pytest.mark.thorough
def test_password_is_read_again_when_it_is_refused(tmp_path: Path, observed: Observed) -> None:
    """It is changed in etcd first, and in the file some time later; with a token that is not known any more."""
    file = tmp_path / "credentials"
    file.touch(mode=0o600)
    with etcd(tmp_path, users=Users()) as cluster:
        assert cluster.users is not None
        file.write_text(f"{cluster.users.user}:{cluster.users.password}")
        user, password = ACCOUNT.read(str(file))
        security = Security(user=user, password=password, credentials=str(file))
        subject = observed(cluster, security=security)
        constant = Subject(cluster, run="constant", security=Security(user=user, password=password))
        cluster.etcdctl("user", "delete", user)
        cluster.etcdctl("user", "add", f"{user}:new one")
        cluster.etcdctl("user", "grant-role", user, "nodes")
        with ThreadPoolExecutor() as pool:
            written = pool.submit(subject.session.put, {"k": b"v"}, timeout=LONG)
            with pytest.raises(TimeoutError, match="does not accept the password"):
                subject.session.create("other", b"", timeout=2)
            with pytest.raises(ConnectionLost, match="does not accept the password"):
                constant.session.put({"k": b"v"}, timeout=LONG)
            assert not written.done()
            file.write_text("half of i")
            file.write_text(f"{user}:new one\n")
            assert written.result(LONG)
        constant.close()
