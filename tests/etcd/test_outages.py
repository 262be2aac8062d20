"""How a session with etcd is lost, refused or resumed after an outage: every cause has its own words."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest
from kits.etcd.etcd_kit import Cluster, Member, etcd
from kits.etcd.failover_kit import Observed, SessionAt, home
from kits.eventually import eventually

from rdzv_plugins.backends.etcd.coordination import EtcdCoordination
from rdzv_plugins.coordination import Event
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable
from rdzv_plugins.testing.parts import LONG, Losses, Recorder

T = LONG


def named_with_reasons(text: str, members: list[Member]) -> list[str]:
    """What is said of each of the members."""
    found = [re.search(rf"{re.escape(str(member.endpoint))}: ([^;]+)", text) for member in members]
    assert all(found), text
    return [each[1] for each in found if each]


def test_no_quorum_for_too_long_ends_the_session_and_names_every_member_with_its_reason(
    three: Cluster, observed: Observed
) -> None:
    subject = observed(three, outage_timeout=4)
    mine = home(three)
    one, two = (member for member in three.members if member is not mine)
    one.kill()
    two.kill()
    error = subject.losses.next()
    assert error.silent
    assert error.silent_since is not None, "the outage is counted from then on"
    alive, *dead = named_with_reasons(str(error), [mine, one, two])
    assert "no leader" in alive
    assert ["refused" in each for each in dead] == [True, True]
    assert error.remedy
    for _ in range(2):
        with pytest.raises(ConnectionLost, match=re.escape(str(error))):
            subject.session.put({"k": b""}, timeout=T)


@pytest.mark.thorough
def test_members_of_two_clusters_are_refused_by_name(tmp_path: Path) -> None:
    with etcd(tmp_path) as one, etcd(tmp_path) as other:

        def refused() -> EndpointUnreachable | None:  # a start waits half a second for it, which may not be enough
            with closing(EtcdCoordination([*one.endpoints, *other.endpoints], "run")) as backend:
                try:
                    backend.open_session(5, on_lost=Losses(), timeout=T)
                except EndpointUnreachable as error:
                    return error
            return None

        text = str(eventually(refused, lambda: "it was never refused"))
        assert str(one.endpoint) in text
        assert str(other.endpoint) in text


@pytest.mark.thorough
def test_a_lease_that_was_revoked_by_hand_ends_the_session(single: Cluster, observed: Observed) -> None:
    """Long before a third of its time to live, when it would have to be refreshed."""
    subject = observed(single, ttl=600)
    single.etcdctl("lease", "revoke", f"{subject.lease:x}")
    error = subject.losses.next()
    assert "by hand" in str(error)
    assert not error.silent
    with pytest.raises(ConnectionLost, match="by hand"):
        subject.session.list("", timeout=T)


@pytest.mark.thorough
def test_a_watch_that_resumes_behind_a_compaction_tells_the_last_state_and_what_is_gone(
    three: Cluster, session_at: SessionAt
) -> None:
    away, there, _ = three.members
    other = session_at([there.endpoint])
    other.put({"stays": b"1", "changes": b"1", "goes": b"1", "returns": b"1"}, timeout=T)
    losses, recorder, later = Losses(), Recorder(), Recorder()
    session = session_at([away.endpoint], losses=losses)
    session.watch("", recorder, timeout=T)
    _, revision = session.list("", timeout=T)
    session.watch("", later, after=revision, timeout=T)
    recorder.take(4)
    away.kill()
    three.wait_quorum()
    other.put({"changes": b"2", "comes and goes": b""}, timeout=T)
    other.delete(["goes", "returns", "comes and goes"], timeout=T)
    last = other.put({"changes": b"3", "returns": b"2", "comes": b"1"}, timeout=T)
    three.etcdctl("compact", "--physical", str(last))
    away.restart()
    other.put({"after": b""}, timeout=T)
    for told in (recorder.until(after_is_told)[4:], later.until(after_is_told)):
        *resumed, after = told
        assert (after.key, after.value) == ("after", b"")
        assert {each.key: each.value for each in resumed if each.key != "comes and goes"} == {
            "goes": None,
            "changes": b"3",
            "returns": b"2",
            "comes": b"1",
        }
        assert len({each.key for each in resumed}) == len(resumed)
        revisions = [each.revision for each in told]
        assert revisions == sorted(revisions)
    assert losses.none


def after_is_told(events: list[Event]) -> bool:
    return bool(events) and events[-1].key == "after"
