"""What ``rdzv doctor`` says of an etcd: well, full, corrupt, without a leader, with members that are no help."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.etcd.etcd_kit import Cluster, Member, etcd
from kits.eventually import eventually

from rdzv_launcher.tools import cli
from rdzv_plugins.backends.etcd.looks import checks_of, look_at
from rdzv_plugins.interfaces import ServiceCheck
from rdzv_plugins.kit.security import Security

Found = dict[str, dict[str, str]]


def doctor(capsys: pytest.CaptureFixture[str], endpoint: str, *flags: str) -> Found:
    """The findings by name."""
    cli.main(["doctor", "--json", f"--rdzv-endpoint={endpoint}", "--rdzv-conf=timeout=5", *flags])
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)["findings"]}


def checks(cluster: Cluster, *members: Member) -> dict[str, ServiceCheck]:
    """The same, of etcd alone, by its own function."""
    endpoints = [member.endpoint for member in members or cluster.members]
    return {each.name: each for each in checks_of(look_at(endpoints, Security(), b"/rdzv-plugins/", 5.0))}


def verdicts(found: Found, names: str) -> set[str]:
    """Of those whose names begin so."""
    return {each["verdict"] for name, each in found.items() if name.startswith(names)}


@pytest.fixture
def steady(tmp_path: Path) -> Iterator[Cluster]:
    """Three members that a busy machine does not make elect another leader."""
    with etcd(tmp_path, members=3, heartbeat=100, election=5000) as cluster:
        yield cluster


@pytest.mark.thorough
def test_members_that_are_well_and_then_fewer_and_fewer(steady: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    three = steady
    before = three.keys()
    found = doctor(capsys, three.endpoint)
    for what in ("members", "member ", "database of ", "clock of "):
        assert verdicts(found, what) == {"ok"}, found
    leading = [name for name, each in found.items() if ", leads; answers in" in each["text"]]
    assert leading == [f"member {three.leader.endpoint}"]
    assert found["backend"]["verdict"] == "ok"
    assert three.keys() == before, "nothing is left there"

    one = three.leader
    lost, left = (member for member in three.members if member is not one)
    few = checks(three, one)
    assert few["endpoint"].verdict == "warning"
    assert all(member.url in few["endpoint"].text for member in (lost, left))

    lost.kill()
    few = checks(three)
    assert few[f"member {lost.endpoint}"].verdict == "warning"
    assert few[f"member {left.endpoint}"].verdict == "ok"
    left.kill()

    def all_wrong() -> bool:  # once the last one knows of no leader
        return {each.verdict for name, each in checks(three).items() if name.startswith("member ")} == {"wrong"}

    eventually(all_wrong, lambda: checks(three))


def test_room_that_gets_less_and_is_gone(small: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    (member,) = small.members
    name = f"database of {member.endpoint}"

    def is_nearly_full() -> bool:
        small.etcdctl("put", "rubbish", "x" * 30_000)
        found = checks(small)
        assert found["alarms"].verdict == "ok", "it was full before anybody was warned"
        return found[name].verdict == "warning"

    assert checks(small)[name].verdict == "ok"
    eventually(is_nearly_full, lambda: checks(small)[name])
    small.fill()
    found = doctor(capsys, small.endpoint)
    assert found["alarm NOSPACE"]["verdict"] == "wrong"
    assert str(member.endpoint) in found["alarm NOSPACE"]["text"]
    small.make_room()
    seen: list[Found] = []

    def is_well() -> bool:  # on a busy machine etcd may not answer at once, which is another verdict
        seen.append(doctor(capsys, small.endpoint))
        return [seen[-1].get(each, {}).get("verdict") for each in ("alarms", name)] == ["ok", "ok"]

    eventually(is_well, lambda: seen[-1])
    assert "alarm NOSPACE" not in seen[-1]


@pytest.mark.thorough
def test_a_member_that_has_not_started(single: Cluster) -> None:
    single.etcdctl("member", "add", "new", "--learner", "--peer-urls=http://127.0.0.1:1")
    waiting = checks(single)["member at http://127.0.0.1:1"]
    assert (waiting.verdict, waiting.text) == ("warning", "it was added, but has not started")
