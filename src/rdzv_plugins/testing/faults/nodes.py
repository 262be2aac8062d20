"""Failures of nodes: killed, frozen, gone with the endpoint; and checks that nodes leave nothing behind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.contract.census import at_rest
from rdzv_plugins.testing.harness import Harness
from rdzv_plugins.testing.nodes.job import Node, NodeError, NodesJob, eventually, rank_of, together
from rdzv_plugins.testing.nodes.theme import NodeTheme

_CYCLES = 3
_OUTAGE_S = 10
"""How many seconds nodes look for an endpoint that is gone, if there is an option for that."""


class NodeFailures(NodeTheme):
    """Losses of nodes: part of the theme ``failure``."""

    theme = "failure"

    def test_node_is_killed_while_it_waits(self, harness: Harness, tmp_path: Path) -> None:
        """A node that is killed while nodes wait is in no round that goes on: the others are complete without it."""
        with NodesJob(harness, tmp_path, "3") as job:
            host = self.waiting_node(job)  # it may serve, and it has to have a place before the others fill the round
            joining = [host.joining]
            victim = self.waiting_node(job)
            victim.kill()
            others = [job.node(node_rank=rank) for rank in ((1, 2) if job.ranks_have_to_be_given else (None, None))]
            joining += [node.join() for node in others]
            together([host, *others], joining, f"3 nodes in one round, without {victim}, which was killed")

    def test_rounds_with_losses_leave_nothing_behind(self, harness: Harness, tmp_path: Path) -> None:
        """A node that loses its peer again and again goes on, and has no thread, descriptor or process more for it."""
        with NodesJob(harness, tmp_path, "2") as job:
            survivor = self.waiting_node(job)  # the first one: it leads, and serves all the time if any node does
            assert survivor.joining is not None
            victim = job.node()
            together([survivor, victim], [survivor.joining, victim.join()])
            assert self.host_of(harness, [survivor, victim]) is not victim
            held: list[dict[str, Any]] = []
            for _ in range(_CYCLES):
                victim.kill()
                victim = job.node(node_rank=victim.request.node_rank)
                entering = victim.join()
                assert survivor.await_change(), f"{survivor} is told neither that its peer was lost nor of {victim}"
                together([survivor, victim], [survivor.join(), entering])
                held.append(at_rest(survivor.resources))
            self._assert_no_more(survivor, held)

    def test_frozen_node_is_evicted_and_comes_back(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """A node that stands still is lost after its time to live; when it goes on it enters a round of its own."""
        if harness.kind != "coordination" or not self.elastic(harness):
            return self.gap(request, "not promised: a node that stands still has no session that would end")
        with NodesJob(harness, tmp_path, "1:2", conf=self.conf(harness, last_call_timeout=1)) as job:
            nodes = job.start(2)
            sleeper = self.others_than(self.host_of(harness, nodes), nodes)[-1]
            (awake,) = self.others_than(sleeper, nodes)
            old = awake.place
            sleeper.freeze()
            assert awake.await_change(), f"{awake} is not told that {sleeper} stands still"
            together([awake])
            sleeper.thaw()
            assert sleeper.await_change(), f"{sleeper} does not notice that it was lost"
            returning = sleeper.join()
            assert awake.await_change(), f"{awake} is not told that {sleeper} is back"
            together([awake, sleeper], [awake.join(), returning])
            assert old is not None
            if self.declares(harness, Capability.NODE_REPLACEMENT):
                assert rank_of(awake) == old.rank, "who stays keeps its rank"
        return None

    @pytest.mark.parametrize("when", ["while nodes wait", "while workers run"])
    def test_node_that_serves_the_endpoint_is_killed(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path, when: str
    ) -> None:
        """With the node that serves the endpoint the job ends for all, in an error that names the endpoint."""
        conf = self.conf(harness, outage_timeout=_OUTAGE_S)
        with NodesJob(harness, tmp_path, "3", conf=conf) as job:
            nodes = [job.node(), job.node()]
            nodes[0].create()
            if when == "while nodes wait":
                joining = [node.join() for node in nodes]
            else:
                nodes.append(job.node())
                joining = [node.join() for node in nodes]
                for pending in joining:
                    pending.result()
            eventually(lambda: self._have_reached_it(harness, nodes), "every node has reached the endpoint")
            host = next((node for node in nodes if self.serves(harness, node)), None)
            if host is None:
                return self._goes_on_without_rank_0(harness, request, job, nodes)
            others = self.others_than(host, nodes)
            host.kill()
            for node in others:
                if when == "while workers run":
                    self._hears_it(node, job)
                    node.join()
                assert node.joining is not None
                self._assert_names_the_endpoint(node.joining.error(), job)
                node.leave("lost", "the endpoint is gone")
        return None

    def test_agents_that_end_leave_nothing_behind(self, harness: Harness, tmp_path: Path) -> None:
        """After leave and shutdown a node holds no thread, descriptor or process of its agent, and its process ends."""
        with NodesJob(harness, tmp_path, "2") as job:
            nodes = [job.node(), job.node()]
            held: list[tuple[dict[str, Any], ...]] = []
            for cycle in range(_CYCLES):
                joining = [nodes[0].join()]
                eventually(lambda: self.registered(nodes[0]), "the first waits")  # what there is to serve, it serves
                together(nodes, [*joining, nodes[1].join()])
                for pending in [node.leave_later("done") for node in nodes]:
                    pending.result()
                endpoint = harness.endpoint(_empty(job.directory / f"endpoint-{cycle}"))
                for node in nodes:  # the handler is forgotten, and the next join makes another
                    node.renew(run_id=f"{job.run_id}-{cycle}", endpoint=endpoint)
                held.append(tuple(at_rest(node.resources) for node in nodes))
            for number, node in enumerate(nodes):
                self._assert_no_more(node, [each[number] for each in held])
                assert node.exit() == 0, f"the process of {node} does not end as it should"

    def _goes_on_without_rank_0(
        self, harness: Harness, request: pytest.FixtureRequest, job: NodesJob, nodes: list[Node]
    ) -> None:
        """No node is special: the one with rank 0, or the first to come, is lost like any other."""
        victim = min(nodes, key=lambda node: node.place.rank if node.place is not None else 0)
        joined = victim.place is not None
        others = self.others_than(victim, nodes)
        victim.kill()
        again = [job.node() for _ in range(3 - len(others))]
        if joined and harness.kind == "coordination":
            for node in others:
                assert node.await_change(), f"{node} is not told that {victim} was lost"
        entering = [node.join() for node in again]
        staying = [node.join() if joined else node.joining for node in others]
        together([*others, *again], [*staying, *entering], f"3 nodes in one round, without {victim}")
        self.gap(request, "no node of the job serves the endpoint: the loss of any one is survived")

    def _have_reached_it(self, harness: Harness, nodes: list[Node]) -> bool:
        known = all((node.joining is not None and node.joining.done()) or self.registered(node) for node in nodes)
        return known and (not harness.dialled or all(node.traffic() for node in nodes))

    def _hears_it(self, node: Node, job: NodesJob) -> None:
        """Ask as an agent does: it is told what is wrong, or to restart, since its workers have lost their store."""
        try:
            assert node.await_change(), f"{node} is not told that the endpoint is gone"
        except NodeError as error:
            self._assert_names_the_endpoint(error, job)

    @staticmethod
    def _assert_names_the_endpoint(error: NodeError, job: NodesJob) -> None:
        assert error.is_a("EndpointLost") or error.is_a("EndpointUnreachable"), f"the endpoint is gone: {error}"
        assert re.search(re.escape(job.endpoint), error.text), f"which endpoint it is: {error}"
        assert error.remedy, f"what to do next: {error}"

    @staticmethod
    def _assert_no_more(node: Node, held: list[dict[str, Any]]) -> None:
        """Assert that it has less than one more of anything per round: what is made once for a process may stay."""

        def grown() -> list[str]:
            now, allowed = node.resources(), len(held) - 2
            return [what for what in now if _count(now[what]) > _count(held[0][what]) + allowed]

        eventually(
            lambda: not grown(),
            f"{node} holds no more than it did {len(held) - 1} times before",
            lambda: f"{grown()}: {held[0]}, then {held[-1]}",
        )


def _count(what: Any) -> int:
    if isinstance(what, dict):
        return sum(what.values())
    return what if isinstance(what, int) else len(what)


def _empty(directory: Path) -> Path:
    directory.mkdir()
    return directory
