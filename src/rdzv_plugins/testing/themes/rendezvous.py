"""``RendezvousTheme``: nodes meet, come late, are spares, leave and are lost, and all agree on who is where."""

from __future__ import annotations

import time

from rdzv_plugins.errors import NotNeeded
from rdzv_plugins.interfaces import Capability, Failure
from rdzv_plugins.testing.nodes import (
    NodeProcess,
    NodeTheme,
    in_round,
    needs,
    one_world,
    regroup,
    take_in,
    together,
    told,
)
from rdzv_plugins.testing.parts import PATIENCE, SLACK, wait_until

_LAST_CALL_S, _JOIN_S = 5, 5
_NOT_TOLD = "its handler does not override leave(): the others are not told how a node ends"


class RoundChecks(NodeTheme):
    """Tests I1, I2, I4, I7, I9, I10 of the design."""

    def test_all_nodes_agree_on_one_world(self) -> None:
        """I1, I9: all nodes of a round agree on its size, have ranks of their own, and meet in one store."""
        with self.nodes("3") as job:
            nodes = [job.node(), job.node()]
            for node in nodes:
                node.join()
            wait_until(lambda: all(map(self.registered, nodes)), "two nodes wait")
            assert not any(node.joining.done() for node in nodes), "2 of 3 nodes were enough for a round"
            nodes.append(job.node())
            nodes[2].join()
            one_world(nodes)
            self.host_of(nodes)
            for node in nodes:
                node.store("set", f"{node.rank}", node.name)
            for node in nodes:
                for other in nodes:
                    assert node.store("get", f"{other.rank}") == other.name.encode(), "the agents' store"
                assert node.num_nodes_waiting() == 0, f"{node} is to restart, though nobody waits"
                assert not node.is_closed()
                assert node.get_run_id() == job.run_id

    def test_later_round_is_that_of_the_same_nodes_and_starts_clean(self) -> None:
        """I2, I7: one asks for a round, all enter it at once. (Its stores: theme ``store``.)"""
        with self.nodes("2") as job:
            first, second = job.start(2)
            take_in([second], first.join())
            for node in (first, second):
                assert node.num_nodes_waiting() == 0, f"{node} is to restart again, though nobody waits"
            if self.declares(Capability.NODE_REPLACEMENT):
                assert (first.rank, second.rank) == (0, 1), "who stays keeps its rank"

    def test_first_round_begins_at_the_maximum_or_after_the_last_call(self) -> None:
        """I2: a first round is complete at the maximum at once, and some time after the minimum without the rest."""
        if not self.elastic():
            with self.nodes("1:2") as job:
                nodes = [job.node(), job.node()]
                nodes[0].join()
                self.says(nodes[0], "is not elastic: it waits for all 2 nodes")
                nodes[1].join()
                one_world(nodes)
            return self.gap("elastic is not declared: every node says so, and waits for the maximum")
        with self.nodes("2:3", conf=self.conf(last_call_timeout=_LAST_CALL_S)) as job:
            nodes = [job.node(), job.node()]
            nodes[0].join()
            wait_until(lambda: self.registered(nodes[0]), f"{nodes[0]} waits")
            nodes[1].create()  # this takes time, and is not part of the round
            before = time.monotonic()  # the minimum is not there yet
            nodes[1].join()
            together(nodes)
            took = time.monotonic() - before
        if not self.accepts("last_call_timeout"):
            return self.gap("not tried: without an option last_call_timeout the maximum makes no difference")
        assert took > 0.9 * _LAST_CALL_S, f"a round of 2:3 began after {took:.2f} s, before the end of its last call"
        with self.nodes("1:2", conf=self.conf(last_call_timeout=10 * PATIENCE)) as job:
            nodes = [job.node(), job.node()]
            in_round(nodes)  # each joins once: a round of one that the other ends is not one of two
            assert [node.num_nodes_waiting() for node in nodes] == [0, 0], "they are to restart, though nobody waits"
        return None

    def test_surplus_node_is_a_spare_and_takes_the_place_of_a_lost_one(self) -> None:
        """I2, I4: a node too many disturbs nobody, and enters when another is lost."""
        if not self.elastic() and self.harness.kind == "handler":
            return self._refuses_a_third()
        with self.nodes("2") as job:
            nodes = job.start(2)
            spare = self.waiting_node(job)
            if self.harness.kind == "coordination":
                self.says(spare, "this node is a spare")
            assert [node.num_nodes_waiting() for node in nodes] == [0, 0], "a spare is no reason to restart"
            assert not spare.joining.done(), f"{spare} is not needed, and does not wait"
            victim, (survivor,) = self.victim_of(nodes)
            victim.kill()
            take_in([survivor], spare.joining)
        return None

    @needs(NodeTheme.elastic, "elastic is not declared: a lost node has to be replaced")
    def test_lost_member_and_the_others_go_on(self) -> None:
        """I4, I10: the others are told of a lost node, know that it was no failure of theirs, and go on without it."""
        with self.nodes("2:3", conf=self.conf(last_call_timeout=_LAST_CALL_S)) as job:
            nodes = job.start(3)
            victim, survivors = self.victim_of(nodes)
            if self.harness.kind == "coordination":
                assert not survivors[0].peer_lost(), "nobody was lost, and a failed worker is its own failure"
            victim.kill()
            if self.harness.kind == "coordination":
                told(survivors, f"{victim} was lost")
                for node in survivors:
                    assert node.peer_lost(), f"{node} would count the loss of {victim} as a failure of its own"
                    self.says(node, rf"pid {victim.pid}\) was lost")
            regroup(survivors)
        if self.harness.kind != "coordination":
            self.gap("not tried: whether the others are told of a lost node before their workers fail")

    @needs(
        lambda theme: theme.join_timeout(_JOIN_S),
        "not tried: no option limits the time until a round is complete",
    )
    def test_time_out_says_who_is_there_and_who_is_missing(self) -> None:
        """I4: a round that is not complete in time ends in an error that says how many of how many, and who."""
        ranked = self.declares(Capability.NODE_RANK)
        with self.nodes("3", conf=self.join_timeout(_JOIN_S)) as job:
            node = job.node(**({"node_rank": 0} if ranked else {}))
            node.create()
            error = node.join().error(min(PATIENCE, _JOIN_S + SLACK))
            error.must_be("RendezvousTimeout", saying=r"\b1 of 3 nodes")
            if ranked:
                assert "missing: node rank 1" in error.text, f"who is missing: {error}"
        if not ranked:
            self.gap("node_rank is not declared, so missing nodes are unknown: the message names those that joined")

    def test_returning_node_takes_its_old_place(self) -> None:
        """I4, I6: too few are left and wait, saying for whom; an agent that is started again gets its old rank."""
        with self.nodes("2") as job:
            nodes = job.start(2)
            victim, (survivor,) = self.victim_of(nodes)
            ranks = survivor.rank, victim.rank
            victim.kill()
            if self.harness.kind == "coordination":
                told([survivor], f"{victim} was lost")
                survivor.join()
                self.says(survivor, rf"1 of 2 nodes have joined .*; missing: .*\(was node {ranks[1]}\)")
                assert not survivor.joining.done(), "1 of 2 nodes was enough for a round"
            again = job.node(node_rank=victim.request.node_rank)
            again.join()
            if self.harness.kind == "coordination":
                together([survivor, again])
            else:
                take_in([survivor], again.joining)
            if self.declares(Capability.NODE_REPLACEMENT):
                assert (survivor.rank, again.rank) == ranks, "old places"
            else:
                self.gap("not tried: node_replacement is not declared, so a returning node may get any rank")

    @needs(lambda theme: theme.harness.kind == "coordination", "only a coordination backend has a leader")
    def test_leader_that_is_lost_while_nodes_wait_is_followed_by_another(self) -> None:
        """I4: the node that decides may go at any time; another one takes over from what it has left."""
        with self.nodes("3") as job:
            first = job.node()
            first.create()  # it may serve the endpoint
            leader = self.waiting_node(job)
            wait_until(leader.leads, f"{leader} leads, which has come first")
            first.join()
            wait_until(lambda: self.registered(first), f"{first} waits")
            leader.kill()
            wait_until(first.leads, f"{first} takes over from {leader}, which was lost")
            others = [job.node(), job.node()]
            for node in others:
                node.join()
            together([first, *others])

    def _refuses_a_third(self) -> None:
        """Check that a fixed number of nodes refuses one more, and is not disturbed by it."""
        with self.nodes("2") as job:
            nodes = job.start(2)
            error = job.node().join().error()
            error.must_be("RdzvError")
            assert [node.num_nodes_waiting() for node in nodes] == [0, 0]
        self.gap("elastic is not declared: a surplus node is refused")


class NodeEnds(NodeTheme):
    """Tests I5 of the design: leaving is not closing."""

    def test_node_that_is_done_lets_the_others_finish(self) -> None:
        """I5, done: the others finish undisturbed; who comes too late is told so, which is no success."""
        with self.nodes("1:3" if self.elastic() else "2") as job:
            nodes = job.start(3 if self.elastic() else 2)
            if "leave" not in nodes[0].overrides():
                self.gap(_NOT_TOLD)
            leaves, others = self.victim_of(nodes)
            for node in nodes:
                node.note_done()
            leaving = leaves.leave_later("done")
            if self.harness.kind == "coordination":
                leaving.result()
                late = job.node().join().error()
                assert late.is_a(NotNeeded), f"a node that comes when the job is about to end is told so: {late}"
            for node in others:
                assert node.await_change(0.3) == 0, f"{node} is to restart, though {leaves} is done"
            ends = [leaving, *(node.leave_later("done") for node in others)]
            for end in ends:
                end.result()

    def test_failure_ends_the_job_everywhere_with_its_cause(self) -> None:
        """I5, failed: the job is over for all nodes, with the reason and the exit code of the worker that failed."""
        with self.nodes("2") as job:
            nodes = job.start(2)
            if "leave" not in nodes[0].overrides():
                return self.gap(_NOT_TOLD)
            fails, (other,) = self.victim_of(nodes)
            failure = Failure(fails.rank, "a-host", 3, 0, 4711, 9, ("boom",))
            fails.note_failure(failure)
            assert other.first_failure() == failure, "the first failure of the round, as every node sees it"
            leaving = fails.leave_later("failed", "rank 3 has exited with code 9", failure)
            assert other.await_closed(), f"{other} is not told that the job has failed on {fails}"
            errors = [other.join().error()]
            if self.harness.kind != "state":  # a state backend may have a store that tells nobody
                errors.append(other.await_change_later().error())
            for error in errors:
                assert error.is_a("PeerFailed"), f"it has failed elsewhere: {error}"
                assert error.exit_code == 9, f"the exit code of the worker that failed: {error}"
                assert "rank 3 has exited with code 9" in error.text, f"the reason: {error}"
            other.leave("lost", "the job has failed")
            leaving.result()
        return None

    def test_node_that_leaves_is_lost_and_the_job_goes_on(self) -> None:
        """I5, lost: a node that is stopped ends nothing; the others hear why it went, and go on."""
        with self.nodes("1:2", conf=self.conf(last_call_timeout=1)) as job:
            nodes = job.start(2)
            leaves, (stays,) = self.victim_of(nodes)
            leaves.note_leaving("it was preempted")
            leaves.leave("lost", "it was preempted")
            if "note_leaving" in stays.overrides():
                told([stays], f"{leaves} has left")
                self.says(stays, "was lost: it was preempted")
            else:
                assert stays.await_change(0.3) == 0
                self.gap("the others are not told that a node left")
            assert not stays.is_closed(), "leaving is not closing"
            if self.elastic():
                regroup([stays])

    def test_closing_ends_the_job_for_all(self) -> None:
        """I5: after set_closed by one node every other is told, and nobody can join any more."""
        with self.nodes("2") as job:
            nodes = job.start(2)
            closes, (other,) = self.victim_of(nodes)
            closes.set_closed()
            assert other.await_closed(), f"{other} is not told that {closes} has closed the rendezvous"
            for node in nodes:
                error = node.join().error()
                assert error.is_a("RendezvousClosed") or error.is_a("RendezvousClosedError"), (
                    f"not one that says so: {error}"
                )


class RefusalChecks(NodeTheme):
    """Tests I6 and I8 of the design."""

    def test_given_node_ranks_are_honoured(self) -> None:
        """I6: a given node rank is the node's rank, whoever comes first; or every node says that it is not."""
        with self.nodes("3") as job:
            nodes = [job.node(node_rank=rank) for rank in (2, 0, 1)]
            in_round(nodes)
            if self.declares(Capability.NODE_RANK):
                assert [node.rank for node in nodes] == [2, 0, 1], "the ranks that were given are 2, 0, 1"
                return
            for node in nodes:
                said = f"--node-rank={node.request.node_rank} is ignored: backend"
                assert said in node.log, f"{node} does not say that its node rank is ignored"
            self.gap("node_rank is not declared: --node-rank is ignored, and every node says so")

    @needs(lambda theme: theme.declares(Capability.NODE_RANK), "node_rank is not declared")
    def test_node_rank_that_is_out_of_range_is_refused(self) -> None:
        """I6: a node rank beyond the number of nodes is a mistake of the command line."""
        with self.nodes("2") as job:
            error = job.node(node_rank=2).join().error()
            error.must_be("UsageError", saying="2")

    @needs(lambda theme: theme.declares(Capability.NODE_RANK), "node_rank is not declared")
    def test_node_rank_that_is_given_twice_is_refused_by_name(self) -> None:
        """I6: of two nodes with one rank one is refused, which names the rank, and the others go on."""
        with self.nodes("2") as job:
            both = [job.node(node_rank=1), job.node(node_rank=1)]
            for node in both:
                node.join()
            if self.harness.kind == "coordination":  # told while the others wait
                wait_until(
                    lambda: any(node.joining.failed() for node in both), "one of two nodes with rank 1 is refused"
                )
            first = job.node(node_rank=0)
            first.join()

            def refused() -> list[NodeProcess]:
                for node in (first, *both):
                    joining = node.joining
                    if joining.done() and not joining.failed() and node.num_nodes_waiting():
                        node.join()  # the other has asked for a round, as an agent does
                return [node for node in both if node.joining.failed()]

            wait_until(refused, "one of two nodes with rank 1 is refused")
            error = refused()[0].joining.error()
            error.must_be("SettingsDiffer", saying="node rank 1")
            stays = [first, *(node for node in both if not node.joining.failed())]
            together(stays)
            assert [node.rank for node in stays] == [0, 1], "the other one takes part"

    def test_two_runs_never_meet(self) -> None:
        """I8: nodes of another run at the same endpoint are refused by its name, or are among themselves."""
        with self.nodes("2") as one:
            first = self.waiting_node(one)
            with self.nodes("2", endpoint=one.endpoint) as other:
                fixed = other.ranks_have_to_be_given
                strangers = [other.node(**({"node_rank": 1} if fixed else {}))]
                strangers[0].join()
                second = one.node()
                second.join()
                together([first, second])
                first.store("set", "whose", "one")
                if not fixed:  # otherwise rank 0 would want the endpoint for itself
                    strangers.append(other.node())
                    strangers[1].join()
                wait_until(lambda: all(node.joining.done() for node in strangers), "they are together, or refused")
                refused = [node for node in strangers if node.joining.failed()]
                assert refused in ([], strangers), f"some nodes of the other run were refused, others not: {refused}"
                for error in [node.joining.error() for node in refused]:
                    assert error.is_a("RunIdMismatch"), f"it is another run's endpoint: {error}"
                    for run in (one, other):
                        assert run.run_id in error.text, f"both runs by name: {error}"
                if not refused:
                    one_world(strangers)
                    assert not strangers[0].store("check", ["whose"]), "two runs share a store"
                assert [first.num_nodes_waiting(), second.num_nodes_waiting()] == [0, 0]

    @needs(lambda theme: theme.harness.kind != "state", "torch's dynamic rendezvous does not compare settings")
    def test_other_settings_are_refused_by_name(self) -> None:
        """I8: a node that was started with another --nnodes is told so, and with whose; the others go on."""
        with self.nodes("2") as job:
            first = self.waiting_node(job)
            odd = job.node(max_nodes=3)
            error = odd.join().error()
            error.must_be("SettingsDiffer", saying=r"--nnodes\W.*\b3\b.*\b2\b")
            assert f"pid {first.pid}" in error.text, f"whose settings they are: {error}"
            second = job.node(**({"node_rank": 1} if job.ranks_have_to_be_given else {}))
            second.join()
            together([first, second])


class RendezvousTheme(RoundChecks, NodeEnds, RefusalChecks):
    """Tests the invariants of the elastic rendezvous, I1 to I11, as far as the backend and its kind promise them.

    Each node is a process of its own, whose handler is made as the launcher makes it.
    """

    theme = "rendezvous"
