"""``ScaleTheme``: what a round costs a node is the same for any number of nodes, and an idle node asks nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from rdzv_plugins.testing.counts import LEAD
from rdzv_plugins.testing.nodes import NodeProcess, NodeTheme, one_world
from rdzv_plugins.testing.parts import wait_until
from rdzv_plugins.testing.suite import Theme, gap_if

SIZES = (3, 4, 8)
"""The numbers of nodes that are compared. Of 2 nodes, one may lead and the other serve the workers' store."""
OF_LEADER = 16
"""The most requests of the deciding node in one round; how its service handles them is its own matter."""
_IDLE_S = 1.5
_MOST_WAITS = 10
"""How often to wait for nodes to become idle; those that never do are found by what they have requested."""
_SEGMENTS_PER_S = 8.0
"""More than a session needs to be kept alive, less than a poll every 100 ms."""
_UNSEEN = "so what its client does by itself is not visible"

Requests = Mapping[str, int]


@gap_if
def _promised(theme: Theme) -> str:
    """Why what a backend is asked does not count; empty if it does."""
    if theme.harness.kind == "state":
        return "not promised: with a state backend every node keeps reading and writing the state"
    return "not tried: requests of a backend's own handler cannot be counted" * (theme.harness.kind == "handler")


class ScaleTheme(NodeTheme):
    """Tests invariant I3, for coordination backends. Requests are the calls of a node's session, whoever makes them."""

    theme = "scale"

    @_promised
    def test_requests_of_a_node_are_the_same_for_any_number_of_nodes(self) -> None:
        """I3: what a first round and a later one cost a node in requests is the same for 3, 4 and 8 nodes."""
        first: dict[int, Requests] = {}
        later: dict[int, Requests] = {}
        for size in SIZES:
            with self.nodes(str(size)) as job:
                nodes = job.start(size)
                before = _settled(nodes)
                first[size] = _of_one(size, nodes, before, {})
                _again(nodes)
                later[size] = _of_one(size, nodes, _settled(nodes), before)
        for what, costs in (("first", first), ("later", later)):
            assert len({tuple(sorted(each.items())) for each in costs.values()}) == 1, (
                f"requests of one node in a {what} round, by the number of nodes: {costs}"
            )

    @_promised
    def test_idle_node_asks_nothing(self) -> None:
        """I3: while a round lasts no node asks for anything, however often its agent wants to know who waits."""
        with self.nodes("3") as job:
            nodes = job.start(3)
            before, begin = _settled(nodes), time.monotonic()
            sent = {node: node.traffic() for node in nodes}
            for pending in [node.await_change_later(_IDLE_S) for node in nodes]:
                assert pending.result() == 0, "nothing has happened"
            for node in nodes:
                assert node.requests() == before[node], f"{node} has asked for something while it was idle"
            if not self.harness.dialled:
                return self.gap(f"not tried: the endpoint is not HOST:PORT of TCP, {_UNSEEN}")
            for node in nodes:
                if self.serves(node):
                    continue
                more = node.traffic() - sent[node]
                rate = more / (time.monotonic() - begin)
                assert rate < _SEGMENTS_PER_S, (
                    f"{node} has sent {rate:.1f} segments per second while it was idle: the service should push changes"
                )
                if more < 0 or not sent[node]:  # only open connections can be asked
                    return self.gap(f"not tried: it keeps no connection open, {_UNSEEN}")
        return None


def _settled(nodes: list[NodeProcess]) -> dict[NodeProcess, Requests]:
    """The requests of each node so far, after a time without a cause for more and without any more."""
    now: dict[NodeProcess, Requests] = {}
    for _ in range(_MOST_WAITS):
        for pending in [node.await_change_later(0.5) for node in nodes]:
            pending.result()
        last, now = now, {node: node.requests() for node in nodes}
        if now == last:
            break
    return now


def _again(nodes: list[NodeProcess]) -> None:
    """All enter another round, when each has heard that this one is over: who loses its store before says so."""
    nodes[-1].join()
    for node in nodes[:-1]:
        wait_until(lambda node=node: node.num_nodes_waiting() > 0, f"{node} hears of it")  # type: ignore[misc]
    for node in nodes[:-1]:
        node.join()
    one_world(nodes)


def _of_one(
    size: int, nodes: list[NodeProcess], after: Mapping[NodeProcess, Requests], before: Mapping[NodeProcess, Requests]
) -> Requests:
    """The requests of a node that neither decides nor serves the workers' store; the same for all such nodes.

    Attempts to lead are left out: who makes one depends on who came first.
    """
    made = {node: dict(Counter(after[node]) - Counter(before.get(node, {}))) for node in nodes}
    for node in nodes:
        made[node].pop(LEAD, None)
        total = sum(made[node].values())
        assert total <= OF_LEADER, f"{node}, of {size}, has made {total} requests for one round: {made[node]}"
    plain = [made[node] for node in nodes if node.rank > 0 and not node.leads()]
    assert plain, "one node at most leads"
    assert all(each == plain[0] for each in plain), f"requests of each node of {size} in one round: {plain}"
    return plain[0]
