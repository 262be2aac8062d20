"""Who is in which round, and when: the part of the rendezvous theme that is about membership."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.contract.parts import SLACK
from rdzv_plugins.testing.harness import Harness
from rdzv_plugins.testing.nodes.job import (
    PATIENCE_S,
    NodeError,
    NodesJob,
    eventually,
    in_round,
    one_world,
    rank_of,
    together,
)
from rdzv_plugins.testing.nodes.theme import NodeTheme

_LAST_CALL_S, _JOIN_S = 10, 5


class Rounds(NodeTheme):
    """Tests I1, I2, I4, I7, I9, I10 of the design."""

    theme = "rendezvous"

    def test_all_nodes_agree_on_one_world(self, harness: Harness, tmp_path: Path) -> None:
        """I1, I9: all nodes of a round agree on its size, have ranks of their own, and meet in one store."""
        with NodesJob(harness, tmp_path, "3") as job:
            nodes = [job.node(), job.node()]
            joining = [node.join() for node in nodes]
            eventually(lambda: all(map(self.registered, nodes)), "two nodes wait")
            assert not any(pending.done() for pending in joining), "2 of 3 nodes were enough for a round"
            nodes.append(job.node())
            joining.append(nodes[2].join())
            one_world([pending.result() for pending in joining])
            self.host_of(harness, nodes)
            for node in nodes:
                node.store("set", f"agent-{rank_of(node)}", node.name)
                node.worker("set", f"worker-{rank_of(node)}", node.name)
            for node in nodes:
                for other in nodes:
                    assert node.store("get", f"agent-{rank_of(other)}") == other.name.encode(), "the agents' store"
                    assert node.worker("get", f"worker-{rank_of(other)}") == other.name.encode(), "the workers' store"
                assert node.num_nodes_waiting() == 0, f"{node} is to restart, though nobody waits"
                assert not node.is_closed()
                assert node.get_run_id() == job.run_id

    def test_later_round_is_that_of_the_same_nodes_and_starts_clean(self, harness: Harness, tmp_path: Path) -> None:
        """I2, I7: one asks for a round, all enter it at once; no old keys are there, late writers are harmless."""
        with NodesJob(harness, tmp_path, "2") as job:
            first, second = job.start(2)
            first.store("set", "stale", "agents")
            first.worker("set", "stale", "workers")
            assert second.worker("get", "stale") == b"workers"
            asked = first.join()
            assert second.await_change(), f"{second} is not told that {first} has asked for a new round"
            together([first, second], [asked, second.join()])
            try:
                second.worker("set", "late", "of a worker of the first round")  # its client is that of the first round
            except NodeError:
                pass  # cut off: so much the better
            for node in (first, second):
                node.worker_quit()
                for key in ("stale", "late"):
                    assert not node.worker("check", [key]), f"key {key!r} of an old round is in the workers' store"
                assert not node.store("check", ["stale"]), "a key of an old round is in the agents' store"
                assert node.num_nodes_waiting() == 0, f"{node} is to restart again, though nobody waits"
            if self.declares(harness, Capability.NODE_REPLACEMENT):
                assert (rank_of(first), rank_of(second)) == (0, 1), "who stays keeps its rank"

    def test_first_round_begins_at_the_maximum_or_after_the_last_call(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """I2: a first round is complete at the maximum at once, and some time after the minimum without the rest."""
        if not self.elastic(harness):
            with NodesJob(harness, tmp_path, "1:2") as job:
                nodes = [job.node(), job.node()]
                waiting = nodes[0].join()
                self.says(nodes[0], "is not elastic: it waits for all 2 nodes")
                one_world([pending.result() for pending in (waiting, nodes[1].join())])
            return self.gap(request, "elastic is not declared: it says so, and waits for the maximum")
        with NodesJob(harness, tmp_path, "2:3", conf=self.conf(harness, last_call_timeout=_LAST_CALL_S)) as job:
            nodes = [job.node(), job.node()]
            waiting = nodes[0].join()
            eventually(lambda: self.registered(nodes[0]), f"{nodes[0]} waits")
            nodes[1].create()  # this takes time, and is not part of the round
            before = time.monotonic()  # the minimum is not there yet
            together(nodes, [waiting, nodes[1].join()])
            took = time.monotonic() - before
        if not self.accepts(harness, "last_call_timeout"):
            return self.gap(request, "not tried: no option last_call_timeout, so that the maximum would not show")
        assert took > 0.9 * _LAST_CALL_S, f"a round of 2:3 began after {took:.2f} s, before the end of its last call"
        with NodesJob(harness, tmp_path, "1:2", conf=self.conf(harness, last_call_timeout=10 * PATIENCE_S)) as job:
            nodes = [job.node(), job.node()]
            in_round(nodes)  # each joins once: a round of one that the other ends is not one of two
            assert [node.num_nodes_waiting() for node in nodes] == [0, 0], "they are to restart, though nobody waits"
        return None

    def test_late_node_enters_where_there_is_room(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """I2: a node that comes later ends the round in which there is room for it, and is in the next one."""
        if not self.elastic(harness):
            return self.gap(request, "elastic is not declared: a round begins with all nodes, so there is never room")
        with NodesJob(harness, tmp_path, "1:2", conf=self.conf(harness, last_call_timeout=1)) as job:
            (first,) = job.start(1)
            late = job.node()
            entering = late.join()
            assert first.await_change(), f"{first} is not told that {late} waits"
            together([first, late], [first.join(), entering])
        return None

    def test_surplus_node_is_a_spare_and_takes_the_place_of_a_lost_one(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """I2, I4: a node too many disturbs nobody, and enters when another is lost."""
        if not self.elastic(harness) and harness.kind == "handler":
            return self._refuses_a_third(harness, request, tmp_path)
        with NodesJob(harness, tmp_path, "2") as job:
            nodes = job.start(2)
            spare = self.waiting_node(job)
            if harness.kind == "coordination":
                self.says(spare, "this node is a spare")
            assert [node.num_nodes_waiting() for node in nodes] == [0, 0], "a spare is no reason to restart"
            assert spare.joining is not None
            assert not spare.joining.done(), f"{spare} is not needed, and does not wait"
            victim = self.others_than(self.host_of(harness, nodes), nodes)[-1]
            (survivor,) = self.others_than(victim, nodes)
            victim.kill()
            assert survivor.await_change(), f"{survivor} is not told that {spare} is to take the place of {victim}"
            together([survivor, spare], [survivor.join(), spare.joining])
        return None

    def test_lost_member_and_the_others_go_on(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """I4, I10: the others are told of a lost node, know that it was no failure of theirs, and go on without it."""
        if not self.elastic(harness):
            return self.gap(request, "elastic is not declared: the place of a lost node has to be taken by another")
        with NodesJob(harness, tmp_path, "2:3", conf=self.conf(harness, last_call_timeout=_LAST_CALL_S)) as job:
            nodes = job.start(3)
            victim = self.others_than(self.host_of(harness, nodes), nodes)[-1]
            survivors = self.others_than(victim, nodes)
            if harness.kind == "coordination":
                assert not survivors[0].peer_lost(), "nobody was lost, and a failed worker is its own failure"
            victim.kill()
            if harness.kind == "coordination":
                for node in survivors:
                    assert node.await_change(), f"{node} is not told that {victim} was lost"
                    assert node.peer_lost(), f"{node} would count the loss of {victim} as a failure of its own"
                    self.says(node, rf"pid {victim.pid}\) was lost")
            together(survivors)
        if harness.kind != "coordination":
            self.gap(request, "not tried: whether the others are told of a lost node before their workers fail by it")
        return None

    def test_returning_node_takes_its_old_place(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """I4, I6: too few are left and wait, saying for whom; an agent that is started again gets its old rank."""
        with NodesJob(harness, tmp_path, "2") as job:
            nodes = job.start(2)
            victim = self.others_than(self.host_of(harness, nodes), nodes)[-1]
            (survivor,) = self.others_than(victim, nodes)
            ranks = rank_of(survivor), rank_of(victim)
            victim.kill()
            if harness.kind == "coordination":
                assert survivor.await_change(), f"{survivor} is not told that {victim} was lost"
                waiting = survivor.join()
                self.says(survivor, rf"1 of 2 nodes have joined .*; missing: .*\(was node {ranks[1]}\)")
                assert not waiting.done(), "1 of 2 nodes was enough for a round"
                again = job.node(node_rank=victim.request.node_rank)
                together([survivor, again], [waiting, again.join()])
            else:
                again = job.node(node_rank=victim.request.node_rank)
                returning = again.join()
                assert survivor.await_change(), f"{survivor} is not told that {again} has come"
                together([survivor, again], [survivor.join(), returning])
            if self.declares(harness, Capability.NODE_REPLACEMENT):
                assert (rank_of(survivor), rank_of(again)) == ranks, "old places"
            else:
                self.gap(request, "not tried: node_replacement is not declared, so the rank of who comes back is open")

    def test_time_out_says_who_is_there_and_who_is_missing(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """I4: a round that is not complete in time ends in an error that says how many of how many, and who."""
        conf = self.join_timeout(harness, _JOIN_S)
        if not conf:
            return self.gap(request, "not tried: it has no option for the time within which a round has to be complete")
        ranked = self.declares(harness, Capability.NODE_RANK)
        with NodesJob(harness, tmp_path, "3", conf=conf) as job:
            node = job.node(**({"node_rank": 0} if ranked else {}))
            node.create()
            error = node.join().error(min(PATIENCE_S, _JOIN_S + SLACK))
            assert error.is_a("RendezvousTimeout"), f"not one with an exit code: {error}"
            assert re.search(r"\b1 of 3 nodes", error.text), f"how many of how many: {error}"
            assert error.remedy, f"what to do next: {error}"
            if ranked:
                assert "missing: node rank 1" in error.text, f"who is missing: {error}"
        if not ranked:
            self.gap(
                request, "node_rank is not declared, so nobody knows who is to come: the message says who is there"
            )
        return None

    def test_leader_that_is_lost_while_nodes_wait_is_followed_by_another(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """I4: the node that decides may go at any time; another one takes over from what it has left."""
        if harness.kind != "coordination":
            return self.gap(request, "nobody leads: no coordination backend")
        with NodesJob(harness, tmp_path, "3") as job:
            first = job.node()
            first.create()  # it may serve the endpoint
            leader = self.waiting_node(job)
            eventually(leader.leads, f"{leader} leads, which has come first")
            joining = [first.join()]
            eventually(lambda: self.registered(first), f"{first} waits")
            leader.kill()
            eventually(first.leads, f"{first} takes over from {leader}, which was lost")
            others = [job.node(), job.node()]
            joining += [node.join() for node in others]
            together([first, *others], joining)
        return None

    def _refuses_a_third(self, harness: Harness, request: pytest.FixtureRequest, directory: Path) -> None:
        """Check that a fixed number of nodes refuses one more, and is not disturbed by it."""
        with NodesJob(harness, directory, "2") as job:
            nodes = job.start(2)
            error = job.node().join().error()
            assert error.is_a("RdzvError"), f"a third node of 2 is refused by an error of its own: {error}"
            assert error.remedy, f"what to do next: {error}"
            assert [node.num_nodes_waiting() for node in nodes] == [0, 0]
        self.gap(request, "elastic is not declared: a node too many is refused")
