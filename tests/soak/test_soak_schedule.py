"""Faults come from the seed alone, and never leave fewer nodes than the job needs."""

from __future__ import annotations

from itertools import islice

import pytest

from soak import arguments
from soak.expectations import Promises, codes_of, documented_end
from soak.schedule import TAKES_AWAY, Burst, Fault, Terms, bursts

NODES = ("node0", "node1", "node2", "node3")


def terms(backend: str, *more: str) -> Terms:
    args = arguments.parse([f"--backend={backend}", *more])
    members = ("etcd0", "etcd1", "etcd2") if backend == "etcd" else ()
    serving = "node0" if args.serving_node else ""
    return Terms(NODES, 2, 5, 15, 60, args.kinds, members=members, serving=serving)


def some(seed: int, of: Terms, count: int = 400) -> list[Burst]:
    return list(islice(bursts(seed, of), count))


def test_same_seed_same_faults() -> None:
    assert some(7, terms("parallel")) == some(7, terms("parallel"))
    assert some(7, terms("parallel")) != some(8, terms("parallel"))


@pytest.mark.parametrize("backend", ["parallel", "tiered", "etcd", "parallel --serving-node", "tiered --places=3"])
def test_every_kind_comes_and_the_minimum_stays(backend: str) -> None:
    of = terms(*backend.split())
    here, seen = set(NODES), set()
    for burst in some(3, of):
        targets = [fault.target for fault in burst.faults]
        assert len(set(targets)) == len(targets) > 0
        away = {fault.target for fault in burst.faults if fault.kind in TAKES_AWAY}
        assert away <= here
        assert len(here - away) >= of.min_nodes
        assert sum(target.startswith("etcd") for target in targets) <= 1, "a minority of the members"
        assert all(fault.other not in (fault.target, of.serving) for fault in burst.faults if fault.other)
        here -= {fault.target for fault in burst.faults if fault.kind == "leave"}
        here |= {fault.target for fault in burst.faults if fault.kind == "arrive"}
        seen |= {fault.kind for fault in burst.faults}
        assert all(fault.lasts <= 30 for fault in burst.faults if fault.target == "server"), "half of the outage"
    assert seen == set(of.kinds)


@pytest.mark.parametrize(
    "flags",
    ["--places=1", "--places=5", "--places=3 --serving-node", "--backend=etcd --token", "--backend=etcd --places=2"],
)
def test_what_does_not_go_together(flags: str) -> None:
    with pytest.raises(SystemExit):
        arguments.parse(flags.split())


PROMISES = Promises(ttl=5, reach_timeout=15, outage=60, slack=1, torch=False, serving="node0")


def test_documented_ends() -> None:
    cut = [Fault("cut", "node2", length="long")]
    assert not documented_end(PROMISES, "node2", 68, cut)
    assert not documented_end(PROMISES, "node1", 68, cut)
    assert documented_end(PROMISES, "node1", 68, [Fault("kill_agent", "node0")])
    assert not documented_end(PROMISES, "node1", 68, [Fault("kill_agent", "node2")])
    frozen = [Fault("stop_server", "server", length="long")]
    assert not documented_end(PROMISES, "node1", 68, frozen)
    assert documented_end(Promises(5, 15, 0, 1, False), "node1", 68, frozen)


def test_exit_codes() -> None:
    from signal import SIGKILL, SIGTERM

    assert codes_of([], spoke=True) == (0,)
    assert codes_of([SIGTERM], spoke=True) == (143,)
    assert -15 in codes_of([SIGTERM], spoke=False)
    assert codes_of([SIGKILL], spoke=True) == (-9,)


def test_limits_grow_with_what_happens() -> None:
    worker = Burst(1, 0, (Fault("kill_worker", "node1"),))
    agent = Burst(1, 0, (Fault("kill_agent", "node1"),))
    both = Burst(1, 0, (*worker.faults, *agent.faults), {"node1": 6.0})
    assert PROMISES.limit(worker) < PROMISES.limit(agent) < PROMISES.limit(both)
