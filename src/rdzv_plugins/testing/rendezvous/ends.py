"""How a node's part in a job ends, and what the others hear of it: done, failed and lost are three ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdzv_plugins.errors import NotNeeded
from rdzv_plugins.interfaces import Failure
from rdzv_plugins.testing.harness import Harness
from rdzv_plugins.testing.nodes.job import NodesJob, rank_of, together
from rdzv_plugins.testing.nodes.theme import NodeTheme

NOT_TOLD = "its handler has no leave() of its own: how a node ends is not told to the others"


class NodeEnds(NodeTheme):
    """Tests I5 of the design: leaving is not closing."""

    theme = "rendezvous"

    def test_node_that_is_done_lets_the_others_finish(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """I5, done: the others finish undisturbed; who comes too late is told so, which is no success."""
        with NodesJob(harness, tmp_path, "1:3" if self.elastic(harness) else "2") as job:
            nodes = job.start(3 if self.elastic(harness) else 2)
            if "leave" not in nodes[0].overrides():
                self.gap(request, NOT_TOLD)
            leaves = self.others_than(self.host_of(harness, nodes), nodes)[-1]
            others = self.others_than(leaves, nodes)
            for node in nodes:
                node.note_done()
            leaving = leaves.leave_later("done")
            if harness.kind == "coordination":
                leaving.result()
                late = job.node().join().error()
                assert late.is_a(NotNeeded), f"a node that comes when the job is about to end is told so: {late}"
            for node in others:
                assert node.await_change(0.3) == 0, f"{node} is to restart, though {leaves} is done"
            ends = [leaving, *(node.leave_later("done") for node in others)]
            for end in ends:
                end.result()

    def test_failure_ends_the_job_everywhere_with_its_cause(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """I5, failed: the job is over for all nodes, with the reason and the exit code of the worker that failed."""
        with NodesJob(harness, tmp_path, "2") as job:
            nodes = job.start(2)
            if "leave" not in nodes[0].overrides():
                return self.gap(request, NOT_TOLD)
            fails = self.others_than(self.host_of(harness, nodes), nodes)[-1]
            (other,) = self.others_than(fails, nodes)
            failure = Failure(rank_of(fails), "a-host", 3, 0, 4711, 9, ("boom",))
            fails.note_failure(failure)
            assert other.first_failure() == failure, "the first failure of the round, as every node sees it"
            leaving = fails.leave_later("failed", "rank 3 has exited with code 9", failure)
            assert other.await_closed(), f"{other} is not told that the job has failed on {fails}"
            errors = [other.join().error()]
            if harness.kind != "state":  # a state backend may have a store that tells nobody
                errors.append(other.await_change_later().error())
            for error in errors:
                assert error.is_a("PeerFailed"), f"it has failed elsewhere: {error}"
                assert error.exit_code == 9, f"the exit code of the worker that failed: {error}"
                assert "rank 3 has exited with code 9" in error.text, f"the reason: {error}"
            other.leave("lost", "the job has failed")
            leaving.result()
        return None

    def test_node_that_leaves_is_lost_and_the_job_goes_on(
        self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        """I5, lost: a node that is stopped ends nothing; the others hear why it went, and go on."""
        with NodesJob(harness, tmp_path, "1:2", conf=self.conf(harness, last_call_timeout=1)) as job:
            nodes = job.start(2)
            leaves = self.others_than(self.host_of(harness, nodes), nodes)[-1]
            (stays,) = self.others_than(leaves, nodes)
            leaves.note_leaving("it was preempted")
            leaves.leave("lost", "it was preempted")
            if "note_leaving" in stays.overrides():
                assert stays.await_change(), f"{stays} is not told that {leaves} has left"
                self.says(stays, "was lost: it was preempted")
            else:
                assert stays.await_change(0.3) == 0
                self.gap(request, "that a node has left is not told to the others")
            assert not stays.is_closed(), "leaving is not closing"
            if self.elastic(harness):
                together([stays])

    def test_closing_ends_the_job_for_all(self, harness: Harness, tmp_path: Path) -> None:
        """I5: after set_closed by one node every other is told, and nobody can join any more."""
        with NodesJob(harness, tmp_path, "2") as job:
            nodes = job.start(2)
            closes = self.others_than(self.host_of(harness, nodes), nodes)[-1]
            (other,) = self.others_than(closes, nodes)
            closes.set_closed()
            assert other.await_closed(), f"{other} is not told that {closes} has closed the rendezvous"
            for node in nodes:
                error = node.join().error()
                assert error.is_a("RendezvousClosed") or error.is_a("RendezvousClosedError"), (
                    f"not one that says so: {error}"
                )
