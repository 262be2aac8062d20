"""``store=tiered`` in the rounds of an elastic job: who connects to whom, and what a lost connection leads to."""

from __future__ import annotations

import logging
import threading

import pytest
from kits.eventually import eventually
from kits.unit.elastic_nodes import PATIENCE_S, Job, Node, done, in_round
from kits.unit.fake_proxy import FakeProxy, proxies

from rdzv_plugins import errors
from rdzv_plugins.elastic.keys import Assignment
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.elastic.round_store import RoundStore
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.interfaces import RendezvousInfo
from rdzv_plugins.kvstore.native.framing import ask_statistics
from rdzv_plugins.options import PortRange
from rdzv_plugins.runtime import SYSTEM
from rdzv_plugins.testing.harness import free_port

__all__ = ["proxies"]

Proxies = type[FakeProxy]


def of(proxies: Proxies, rank: int) -> FakeProxy:
    """The newest proxy of the node of that rank."""
    return next(each for each in reversed(proxies.made) if each.name.startswith(f"node {rank} "))


def joined(nodes: list[Node]) -> list[RendezvousInfo]:
    """They are in one round."""
    infos = [future.result(PATIENCE_S) for future in [node.join() for node in nodes]]
    assert sorted(info.rank for info in infos) == list(range(len(nodes)))
    assert len({node.handler.worker_env()["RDZV_ROOT_PORT"] for node in nodes}) == 1
    return infos


def start(job: Job, count: int) -> list[Node]:
    """The nodes of a round, in the order of their ranks."""
    nodes = [job.node(node_rank=rank) for rank in range(count)]
    for future in [node.join() for node in nodes]:
        future.result(PATIENCE_S)
    return nodes


def test_each_node_has_a_proxy_in_front_of_the_one_store(proxies: Proxies) -> None:
    with Job("2", store="tiered") as job:
        nodes = [job.node(node_rank=rank) for rank in range(2)]
        infos = joined(nodes)
        near = [(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in infos]
        assert near == [("127.0.0.1", of(proxies, rank).ports[0]) for rank in range(2)]
        root = of(proxies, 0).root
        for node, (_, port) in zip(nodes, near, strict=True):
            assert node.handler.worker_env() == {
                "RDZV_ROUND": "1",
                "RDZV_ROOT_ADDR": root.host,
                "RDZV_ROOT_PORT": str(root.port),
                "RDZV_STORE_PORT": str(port),
            }
        assert of(proxies, 1).root == root
        assert all(each.leaf and each.grace == 5 for each in proxies.made)
        infos[0].store.set("from", "rank")
        assert infos[1].store.get("from") == b"rank"
        of(proxies, 1).close()
        with pytest.raises(errors.StoreLost, match=r"lost the store|broken"):
            infos[1].store.check(["from"])  # that was its way there


def test_workers_may_be_told_a_unix_socket(proxies: Proxies) -> None:
    with Job("1", store="tiered", worker_transport="unix") as job:
        (node,) = start(job, 1)
        (made,) = proxies.made
        told = node.handler.worker_env()
        assert [told["RDZV_STORE_SOCKET"]] == made.paths
        assert [int(told["RDZV_STORE_PORT"])] == made.ports
        first = made.paths
        node.join().result(PATIENCE_S)
        assert proxies.made[1].paths != first
        assert proxies.made[0].closed


@pytest.mark.parametrize("options", [{"store": "tiered", "worker_transport": "direct"}, {}], ids=["direct", "other"])
def test_direct_workers_and_other_stores_need_no_proxy(proxies: Proxies, options: dict[str, str]) -> None:
    with Job("2", **options) as job:
        nodes = [job.node(), job.node()]
        where = in_round(nodes)[0].bootstrap_store_info
        root = {"RDZV_ROOT_ADDR": where.master_addr, "RDZV_ROOT_PORT": str(where.master_port)} if options else {}
        assert nodes[1].handler.worker_env() == {"RDZV_ROUND": "1"} | root
        assert proxies.made == []


def test_second_tier_connects_to_the_first_by_rank(proxies: Proxies) -> None:
    with Job("5", store="tiered", fanout=2) as job:
        start(job, 5)
        root = of(proxies, 0).root
        assert of(proxies, 1).root == root
        assert [each.leaf for each in (of(proxies, rank) for rank in range(5))] == [False, False, True, True, True]
        for child, parent in ((2, 0), (3, 1), (4, 0)):
            above = of(proxies, parent)
            assert of(proxies, child).root.port in above.ports, "not that of the store"
            assert len(above.ports) == 2, "one for the workers, one for the proxies below"


def test_lost_store_is_a_new_round_for_all_and_nobodys_failure(
    proxies: Proxies, caplog: pytest.LogCaptureFixture
) -> None:
    with Job("3", store="tiered") as job, caplog.at_level(logging.INFO):
        nodes = start(job, 3)
        early: list[int] = []
        key = f"members/{nodes[1].id}"
        job.service.on("put", key, "before", lambda _: early.append(nodes[1].handler.num_nodes_waiting()))
        of(proxies, 1).lose("no answer for 5 s")
        assert early == [1], "whether the service answers or not"
        assert nodes[1].handler.peer_lost() is True
        for node in (nodes[0], nodes[2]):
            eventually(node.handler.num_nodes_waiting, lambda: "the others hear of it")
            assert node.handler.peer_lost() is True, "whose workers fail with those of the cut off node"
        assert job.round.reason.endswith("is cut off from the workers' store: no answer for 5 s")
        assert job.round.cause == "lost"
        line = "this node is cut off from the workers' store of round 1: no answer for 5 s; its workers"
        eventually(lambda: line in caplog.text, lambda: "its log says so")
        joined(nodes)
        assert job.round.number == 2
        assert [node.handler.num_nodes_waiting() for node in nodes] == [0, 0, 0]
        again = nodes[1].join()  # asked for, and not for the reason of the round before
        eventually(nodes[0].handler.must_rejoin, lambda: "it hears of it")
        assert job.round.reason.endswith("asked for a new round")
        assert nodes[0].handler.peer_lost() is False
        rest = [nodes[0].join(), nodes[2].join()]
        assert {future.result(PATIENCE_S).world_size for future in (again, *rest)} == {3}
    assert caplog.text.count("this node is cut off") == 1


def test_worker_that_fails_before_its_node_has_heard_that_it_is_cut_off(proxies: Proxies) -> None:
    with Job("2", store="tiered") as job:
        nodes = start(job, 2)
        assert job.pool.submit(nodes[1].handler.peer_lost).result(PATIENCE_S) is False
        of(proxies, 1).cut_off = True
        assert job.pool.submit(nodes[1].handler.peer_lost).result(PATIENCE_S) is True
        assert job.pool.submit(nodes[0].handler.peer_lost).result(PATIENCE_S) is False


def test_node_that_is_done_needs_no_new_round(proxies: Proxies) -> None:
    with Job("2", store="tiered") as job:
        nodes = start(job, 2)
        nodes[1].handler.note_done()
        of(proxies, 1).cut_off = True
        of(proxies, 1).lose("no answer for 5 s")
        assert [node.handler.must_rejoin() for node in nodes] == [False, False]
        assert job.pool.submit(nodes[1].handler.peer_lost).result(PATIENCE_S) is False
        assert job.round.state == "complete"


def test_parent_that_is_done_waits_for_those_below(proxies: Proxies) -> None:
    with Job("4", store="tiered", fanout=2, linger=9 * PATIENCE_S) as job:
        nodes = start(job, 4)
        leaving = [job.pool.submit(node.leave, done()) for node in nodes[:2]]
        for node in nodes[:2]:
            key = f"members/{node.id}"
            eventually(lambda key=key: b'"leaving":"done"' in (job.service.value(key) or b""), lambda: "it wants to go")
        assert not any(each.done() for each in leaving)
        for node in nodes[2:]:
            node.leave(done())
        for each in leaving:
            each.result(PATIENCE_S)  # and not for each other


def test_child_whose_parent_is_lost_before_it_has_said_where_it_is_joins_again(
    proxies: Proxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Job("3:4", store="tiered", fanout=2, ttl=1) as job:
        nodes = [job.node(node_rank=rank) for rank in range(4)]

        over = threading.Event()

        def hangs(*_: object) -> None:
            over.wait(PATIENCE_S)
            raise errors.EndpointUnreachable("it is dead")

        monkeypatch.setattr(nodes[1].handler._store._proxy, "open", hangs)
        futures = [node.join() for node in nodes]
        assert [futures[rank].result(PATIENCE_S).world_size for rank in (0, 2)] == [4, 4]
        nodes[1].die()
        again = [nodes[0].join(), nodes[2].join(), futures[3]]
        assert sorted(future.result(PATIENCE_S).rank for future in again) == [0, 1, 2]
        over.set()
        assert job.round.number == 2


def test_refusal_of_a_living_store_ends_this_node_with_the_reason(
    proxies: Proxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Job("1", store="tiered") as job:
        node = job.node()
        monkeypatch.setattr(node.handler._store._proxy, "_patience", 0.5)  # the store itself is reached, however late
        proxies.refusals[:] = ["what accepts connections there is not a native store"] * 10**6
        with pytest.raises(errors.EndpointUnreachable, match=r"run 'job': .*not a native store"):
            node.handler.next_rendezvous()


def test_real_proxies_of_two_tiers_and_the_loss_of_a_parent() -> None:
    with Job("4", store="tiered", fanout=2) as job:
        nodes = start(job, 4)
        infos = [node.handler.worker_env() for node in nodes]
        root = Endpoint(infos[0]["RDZV_ROOT_ADDR"], int(infos[0]["RDZV_ROOT_PORT"]))

        def connected() -> tuple[list[str], int]:
            (store,) = ask_statistics(root, PATIENCE_S)["keyspaces"]
            return sorted(trunk["name"].partition(" on ")[0] for trunk in store["trunks"]), store["connections"]

        expected = ["node 0", "node 1"], 3
        eventually(lambda: connected() == expected, lambda: f"{expected}: their connections and that of the question")
        for node in nodes:
            node.handler._store.agents.set(f"of {node.id}", "it")
        for node in nodes:
            assert nodes[3].handler._store.agents.get(f"of {node.id}") == b"it"
        parent = nodes[1].handler._store._proxy._proxy
        parent.close()  # as with its process; its node is not told
        eventually(nodes[3].handler.must_rejoin, lambda: "its child is cut off")
        assert nodes[3].handler.peer_lost() is True
        for node in nodes:
            eventually(node.handler.num_nodes_waiting, lambda: "all hear of it")
        assert job.round.cause == "lost"
        assert {info.world_size for info in joined(nodes)} == {4}


@pytest.mark.parametrize(
    "port",
    [pytest.param(free_port(), id="the same port again"), pytest.param(0, id="any", marks=pytest.mark.thorough)],
)
def test_late_node_does_not_take_the_store_of_the_next_round_for_its_own(
    proxies: Proxies, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped between reaching the store of its round and connecting its proxy."""
    monkeypatch.setattr("rdzv_plugins.elastic.round_store._ATTEMPT_S", 60.0)
    options = ElasticOptions(store="tiered", worker_ports=PortRange(port, port), reach_timeout=0.1, ttl=0.5)
    first, late = RoundStore(options, lambda *_: None, SYSTEM), RoundStore(options, lambda *_: None, SYSTEM)

    def begin(round_: int) -> Assignment:
        _, address, served = first.serve(Assignment(round_, 0, 2), "127.0.0.1")
        return Assignment(round_, 1, 2, master_addr=address, master_port=served)

    try:
        one = begin(1)
        assert late.reach(one) == ""
        two = begin(2)
        with pytest.raises(errors.EndpointUnreachable, match="is that of round 2, not of round 1" if port else None):
            late.open(one, None)
        if port:
            assert proxies.made[-1].closed
        assert late.reach(two) == ""
        late.open(two, None)
    finally:
        late.shutdown()
        first.shutdown()
