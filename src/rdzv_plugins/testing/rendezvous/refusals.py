"""Ranks that are given, and nodes that cannot take part: who is told what, and that the others go on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.harness import Harness
from rdzv_plugins.testing.nodes.job import Node, NodeError, NodesJob, eventually, one_world, rank_of, together
from rdzv_plugins.testing.nodes.theme import NodeTheme


class Refusals(NodeTheme):
    """Tests I6 and I8 of the design."""

    theme = "rendezvous"

    def test_given_node_ranks_are_honoured(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """I6: a given node rank is the node's rank, whoever comes first; or every node says that it is not."""
        with NodesJob(harness, tmp_path, "3") as job:
            nodes = [job.node(node_rank=rank) for rank in (2, 0, 1)]
            one_world([pending.result() for pending in [node.join() for node in nodes]])
            if self.declares(harness, Capability.NODE_RANK):
                assert [rank_of(node) for node in nodes] == [2, 0, 1], "the ranks that were given are 2, 0, 1"
                return
            for node in nodes:
                said = f"--node-rank={node.request.node_rank} is ignored: backend"
                assert said in node.log, f"{node} does not say that its node rank is ignored"
            self.gap(request, "node_rank is not declared: a given one is ignored, and every node says so")

    def test_node_rank_that_is_out_of_range_is_refused(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """I6: a node rank beyond the number of nodes is a mistake of the command line."""
        if not self.declares(harness, Capability.NODE_RANK):
            return self.gap(request, "node_rank is not declared")
        with NodesJob(harness, tmp_path, "2") as job:
            error = job.node(node_rank=2).join().error()
            assert error.is_a("UsageError"), f"not an error of the command line: {error}"
            assert "2" in error.text, f"which rank: {error}"
            assert error.remedy, f"what to do next: {error}"
        return None

    def test_node_rank_that_is_given_twice_is_refused_by_name(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """I6: of two nodes with one rank one is refused, which names the rank, and the others go on."""
        if not self.declares(harness, Capability.NODE_RANK):
            return self.gap(request, "node_rank is not declared")
        with NodesJob(harness, tmp_path, "2") as job:
            both = [job.node(node_rank=1), job.node(node_rank=1)]
            for node in both:
                node.join()
            if harness.kind == "coordination":  # told while the others wait
                eventually(lambda: any(map(has_failed, both)), "one of two nodes with rank 1 is refused")
            first = job.node(node_rank=0)
            first.join()

            def refused() -> list[Node]:
                for node in (first, *both):
                    joining = node.joining
                    if joining is not None and joining.done() and not joining.failed() and node.num_nodes_waiting():
                        node.join()  # the other has asked for a round, as an agent does
                return [node for node in both if has_failed(node)]

            eventually(refused, "one of two nodes with rank 1 is refused")
            error = _error(refused()[0])
            assert error.is_a("SettingsDiffer"), f"two nodes with one rank: {error}"
            assert "node rank 1" in error.text, f"which rank it is: {error}"
            assert error.remedy, f"what to do next: {error}"
            stays = [first, *(node for node in both if not has_failed(node))]
            together(stays, [node.joining for node in stays])
            assert [rank_of(node) for node in stays] == [0, 1], "the other one takes part"
        return None

    def test_two_runs_never_meet(self, harness: Harness, tmp_path: Path) -> None:
        """I8: nodes of another run at the same endpoint are refused by its name, or are among themselves."""
        with NodesJob(harness, tmp_path, "2") as one:
            first = self.waiting_node(one)
            with NodesJob(harness, tmp_path, "2", endpoint=one.endpoint) as other:
                fixed = other.ranks_have_to_be_given
                strangers = [other.node(**({"node_rank": 1} if fixed else {}))]
                entering = [strangers[0].join()]
                second = one.node()
                assert first.joining is not None
                together([first, second], [first.joining, second.join()])
                first.store("set", "whose", "one")
                if not fixed:  # otherwise rank 0 would want the endpoint for itself
                    strangers.append(other.node())
                    entering.append(strangers[1].join())
                eventually(lambda: all(pending.done() for pending in entering), "they are together, or refused")
                refused = [node for node in strangers if has_failed(node)]
                assert refused in ([], strangers), f"some nodes of the other run were refused, others not: {refused}"
                for error in map(_error, refused):
                    assert error.is_a("RunIdMismatch"), f"it is another run's endpoint: {error}"
                    for run in (one, other):
                        assert run.run_id in error.text, f"both runs by name: {error}"
                if not refused:
                    one_world([pending.result() for pending in entering])
                    assert not strangers[0].store("check", ["whose"]), "two runs share a store"
                assert [first.num_nodes_waiting(), second.num_nodes_waiting()] == [0, 0]

    def test_other_settings_are_refused_by_name(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """I8: a node that was started with another --nnodes is told so, and with whose; the others go on."""
        if harness.kind == "state":
            return self.gap(request, "not promised: torch's dynamic rendezvous does not compare settings")
        with NodesJob(harness, tmp_path, "2") as job:
            first = self.waiting_node(job)
            odd = job.node(max_nodes=3)
            error = odd.join().error()
            assert error.is_a("SettingsDiffer"), f"not an error about settings: {error}"
            assert re.search(r"--nnodes\W.*\b3\b.*\b2\b", error.text), f"which setting, here and there: {error}"
            assert f"pid {first.pid}" in error.text, f"whose settings they are: {error}"
            assert error.remedy, f"what to do next: {error}"
            second = job.node(**({"node_rank": 1} if job.ranks_have_to_be_given else {}))
            assert first.joining is not None
            together([first, second], [first.joining, second.join()])
        return None


def has_failed(node: Node) -> bool:
    """Whether its last join has ended in an error."""
    return node.joining is not None and node.joining.failed()


def _error(node: Node) -> NodeError:
    """The error in which a node's last join has ended."""
    assert node.joining is not None
    return node.joining.error()
