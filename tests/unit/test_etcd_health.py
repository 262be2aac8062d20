"""What is said of an etcd, from looks at its members that no test can bring about."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rdzv_plugins.backends.etcd.looks import Listed, Look, checks_of
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.interfaces import ServiceCheck

GIB = 2**30
WELL = Look(
    Endpoint("h", 1),
    version="3.5.9",
    cluster_id=7,
    member_id=1,
    leader_id=1,
    size=GIB,
    size_in_use=GIB // 2,
    quota=2 * GIB,
    answer_s=0.001,
    read_s=0.002,
    disk_s=0.004,
    clock_s=(-0.5, 0.6),
)


def listed(number: int, **changes: Any) -> Listed:
    return dataclasses.replace(
        Listed(number, f"m{number}", (f"http://h:9{number}",), (f"http://h:{number}",), False), **changes
    )


def check(name: str, *looks: Look, members: int = 3) -> ServiceCheck:
    return {each.name: each for each in checks_of(looks, [listed(n) for n in range(1, members + 1)])}[name]


def test_all_is_well() -> None:
    others = [dataclasses.replace(WELL, endpoint=Endpoint("h", n), member_id=n) for n in (2, 3)]
    found = checks_of([WELL, *others], [listed(n) for n in (1, 2, 3)])
    assert {each.verdict for each in found} == {"ok"}
    assert not any(each.remedy for each in found)
    assert len({each.name for each in found}) == len(found)
    assert [each.text.count(", leads;") for each in found if each.name.startswith("member ")] == [1, 0, 0]


@pytest.mark.parametrize(
    ("name", "changes", "verdict", "says"),
    [
        ("member h:1", {"answer_s": 0.3}, "warning", "answers in 300.0 ms"),
        ("member h:1", {"read_s": 0.3}, "warning", "in 300.0 ms what the others"),
        ("member h:1", {"read_problem": "request timed out"}, "wrong", "have to agree to: request timed out"),
        ("member h:1", {"version": "", "refusal": "permission denied"}, "skipped", "not say how it is: permission"),
        ("member h:1", {"is_learner": True}, "wrong", "a learner"),
        ("alarms", {"version": "3.3.27"}, "skipped", "etcd 3.3.27 does not tell"),
        ("alarm NOSPACE", {"errors": ("memberID:1  alarm:NOSPACE",)}, "wrong", "raised at h:1: etcd takes no more"),
        ("database of h:1", {"size": 1.7 * GIB}, "warning", "1740.8 MiB of 2048.0 MiB, 512.0 MiB of it in use: when"),
        ("database of h:1", {"quota": 0}, "ok", "its quota is not told"),
        ("disk of h:1", {"disk_s": 0.128}, "warning", "takes longer than 100.0 ms, up to 128.0 ms"),
        ("disk of h:1", {"disk_s": float("inf")}, "warning", "takes longer than 100.0 ms, longer than it counts"),
        ("clock of h:1", {"clock_s": (29.5, 30.6)}, "warning", "30 s ahead of this machine's"),
    ],
)
def test_what_is_not_well(name: str, changes: dict[str, Any], verdict: str, says: str) -> None:
    found = check(name, dataclasses.replace(WELL, **changes))
    assert (found.verdict, says in found.text) == (verdict, True), found
    assert bool(found.remedy) == (verdict in ("warning", "wrong"))


def test_what_is_done_about_a_full_database_depends_on_what_it_holds() -> None:
    full = dataclasses.replace(WELL, size=int(1.7 * GIB))
    assert "defrag gives back" in check("database of h:1", full).remedy
    assert "etcdctl compact" in check("database of h:1", dataclasses.replace(full, size_in_use=full.size)).remedy


def test_members_of_several_clusters_and_of_few() -> None:
    stranger = dataclasses.replace(WELL, endpoint=Endpoint("g", 1), cluster_id=8)
    assert "h:1 and g:1 are members of different clusters" in check("members", WELL, stranger).text
    assert check("members", WELL, members=1).verdict == "ok"
    assert check("members", WELL, members=2).verdict == "warning"
    assert "2 may be lost" in check("members", WELL, members=5).text
    assert {each.name: each.verdict for each in checks_of([WELL], None)}["members"] == "skipped"


def test_members_that_an_endpoint_leaves_out() -> None:
    assert "http://h:2, http://h:3" in check("endpoint", WELL).text
    for other in ("a-balancer", "127.0.0.1"):  # what is behind it nobody knows
        found = checks_of([dataclasses.replace(WELL, endpoint=Endpoint(other, 1))], [listed(n) for n in (1, 2, 3)])
        assert "endpoint" not in {each.name for each in found}
