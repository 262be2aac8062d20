"""Theme ``failure``: the service, the network or nodes fail, and nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import re
import threading
from collections.abc import Callable

import pytest

from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.faults import ServiceFaults, StateFaults, behind, relay_target
from rdzv_plugins.testing.harness import takes
from rdzv_plugins.testing.job import NO_RELAY, ContractJob, JobTheme
from rdzv_plugins.testing.nodes import Node, NodeError, NodesJob, NodeTheme, rank_of, together
from rdzv_plugins.testing.parts import PATIENCE, Losses, Recorder, at_rest, census, opened, wait_until
from rdzv_plugins.testing.relay import Relay

T = PATIENCE
_CYCLES = 3
_OUTAGE_S = 10
"""How many seconds nodes look for an endpoint that is gone, if there is an option for that."""
_NOT_SERVED = "no node of the job serves the endpoint: the loss of any one is survived"


class NodeFailures(NodeTheme):
    """Losses of nodes: part of the theme ``failure``."""

    def test_node_is_killed_while_it_waits(self) -> None:
        """A node that is killed while nodes wait is in no round that goes on: the others are complete without it."""
        with self.nodes("3") as job:
            host = self.waiting_node(job)  # it may serve, and it has to have a place before the others fill the round
            joining = [host.joining]
            victim = self.waiting_node(job)
            victim.kill()
            others = [job.node(node_rank=rank) for rank in ((1, 2) if job.ranks_have_to_be_given else (None, None))]
            joining += [node.join() for node in others]
            together([host, *others], joining, f"3 nodes in one round, without {victim}, which was killed")

    def test_rounds_with_losses_leave_nothing_behind(self) -> None:
        """A node that loses its peer again and again goes on, and has no thread, descriptor or process more for it."""
        with self.nodes("2") as job:
            survivor = self.waiting_node(job)  # the first one: it leads, and serves all the time if any node does
            assert survivor.joining is not None
            victim = job.node()
            together([survivor, victim], [survivor.joining, victim.join()])
            assert self.host_of([survivor, victim]) is not victim
            held: list[dict[str, int]] = []
            for _ in range(_CYCLES):
                victim.kill()
                victim = job.node(node_rank=victim.request.node_rank)
                entering = victim.join()
                assert survivor.await_change(), f"{survivor} is told neither that its peer was lost nor of {victim}"
                together([survivor, victim], [survivor.join(), entering])
                held.append(at_rest(survivor.resources))
            self._assert_no_more(survivor, held)

    def test_frozen_node_is_evicted_and_comes_back(self) -> None:
        """A node that stands still is lost after its time to live; when it goes on it enters a round of its own."""
        if self.harness.kind != "coordination" or not self.elastic():
            return self.gap("not promised: a node that stands still has no session that would end")
        with self.nodes("1:2", conf=self.conf(last_call_timeout=1)) as job:
            nodes = job.start(2)
            sleeper, (awake,) = self.victim_of(nodes)
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
            if self.declares(Capability.NODE_REPLACEMENT):
                assert rank_of(awake) == old.rank, "who stays keeps its rank"
        return None

    @pytest.mark.parametrize("when", ["while nodes wait", "while workers run"])
    def test_node_that_serves_the_endpoint_is_killed(self, when: str) -> None:
        """With the node that serves the endpoint the job ends for all, in an error that names the endpoint."""
        running = when == "while workers run"
        with self.nodes("3", conf=self.conf(outage_timeout=_OUTAGE_S)) as job:
            nodes = [job.node(), job.node()]
            nodes[0].create()
            nodes += [job.node()] * running
            joining = [node.join() for node in nodes]
            if running:
                for pending in joining:
                    pending.result()
            wait_until(lambda: self._have_reached_it(nodes), "every node has reached the endpoint")
            host = next((node for node in nodes if self.serves(node)), None)
            if host is None:
                return self._goes_on_without_rank_0(job, nodes) if running else self.gap(_NOT_SERVED)
            host.kill()
            for node in self.others_than(host, nodes):
                if running:
                    self._hears_it(node, job)
                    node.join()
                assert node.joining is not None
                self._assert_names_the_endpoint(node.joining.error(), job)
                node.leave("lost", "the endpoint is gone")
        return None

    def test_agents_that_end_leave_nothing_behind(self) -> None:
        """After leave and shutdown a node holds no thread, descriptor or process of its agent, and its process ends."""
        with self.nodes("2") as job:
            nodes = [job.node(), job.node()]
            held: list[tuple[dict[str, int], ...]] = []
            for cycle in range(_CYCLES):
                joining = [nodes[0].join()]
                wait_until(lambda: self.registered(nodes[0]), "the first waits")  # what there is to serve, it serves
                together(nodes, [*joining, nodes[1].join()])
                for pending in [node.leave_later("done") for node in nodes]:
                    pending.result()
                place = job.directory / f"endpoint-{cycle}"
                place.mkdir()
                endpoint = self.harness.endpoint(place)
                for node in nodes:  # the handler is forgotten, and the next join makes another
                    node.renew(run_id=f"{job.run_id}-{cycle}", endpoint=endpoint)
                held.append(tuple(at_rest(node.resources) for node in nodes))
            for number, node in enumerate(nodes):
                self._assert_no_more(node, [each[number] for each in held])
                assert node.exit() == 0, f"the process of {node} does not end as it should"

    def _goes_on_without_rank_0(self, job: NodesJob, nodes: list[Node]) -> None:
        """No node is special: the one with rank 0 is lost like any other."""
        victim = next(node for node in nodes if rank_of(node) == 0)
        others = self.others_than(victim, nodes)
        victim.kill()
        again = job.node()
        if self.harness.kind == "coordination":
            for node in others:
                assert node.await_change(), f"{node} is not told that {victim} was lost"
        entering = again.join()
        together([*others, again], [*(node.join() for node in others), entering])
        self.gap(_NOT_SERVED)

    def _have_reached_it(self, nodes: list[Node]) -> bool:
        known = all((node.joining is not None and node.joining.done()) or self.registered(node) for node in nodes)
        return known and (not self.harness.dialled or all(node.traffic() for node in nodes))

    def _hears_it(self, node: Node, job: NodesJob) -> None:
        """Ask as an agent does: it is told what is wrong, or to restart, since its workers have lost their store."""
        try:
            assert node.await_change(), f"{node} is not told that the endpoint is gone"
        except NodeError as error:
            self._assert_names_the_endpoint(error, job)

    @staticmethod
    def _assert_names_the_endpoint(error: NodeError, job: NodesJob) -> None:
        error.must_be("EndpointLost", "EndpointUnreachable", saying=re.escape(job.endpoint))

    @staticmethod
    def _assert_no_more(node: Node, held: list[dict[str, int]]) -> None:
        """Assert that it has less than one more of anything per round: what is made once for a process may stay."""

        def grown() -> list[str]:
            now, allowed = node.resources(), len(held) - 2
            return [what for what in now if now[what] > held[0][what] + allowed]

        wait_until(
            lambda: not grown(),
            lambda: f"{node} holds more than {len(held) - 1} times before of {grown()}: {held[0]}, then {held[-1]}",
        )


class Leaks(JobTheme, kind="coordination"):
    """A launcher may be part of a process that lives on: a notebook, a test, an agent of many jobs."""

    def test_nothing_is_left_of_a_service_that_was_closed(self, job: ContractJob) -> None:
        at_once = {"linger": "0"} if takes(job.harness, "linger") else {}

        def cycle() -> None:
            one_job, recorder = job.another(), Recorder()
            one, two = (opened(one_job.backend(conf=at_once)) for _ in range(2))
            one.watch("", recorder, timeout=T)
            two.create("k", b"", ephemeral=True, timeout=T)
            recorder.take(1)
            two.close()
            one_job.close()  # including the session that is left

        assert_leaves_nothing(cycle)

    def test_nothing_is_left_of_sessions_that_were_cut_off(self, job: ContractJob) -> None:
        target = relay_target(job)
        if target is None:
            return job.gap(NO_RELAY)
        job.session()

        def cycle() -> None:
            with Relay(*target) as relay:
                backend = job.backend(behind(job, relay), conf=job.not_serving())
                session = opened(backend, job.ttl, Losses())
                session.watch("", Recorder(), timeout=T)
                relay.refuse()
                with contextlib.suppress(ConnectionLost, TimeoutError):
                    session.put({"k": b""}, timeout=0.1)
                backend.close()

        assert_leaves_nothing(cycle)  # each may wait for a service to which it cannot say goodbye
        return None


def assert_leaves_nothing(cycle: Callable[[], None], times: int = _CYCLES) -> None:
    """Assert that ``times`` cycles leave fewer than ``times`` of anything: what is made once for a process may stay."""
    cycle()
    before = at_rest(census)  # otherwise what is still to go would hide what stays
    gc.freeze()  # from now on census() looks for garbage only in what is new, not in everything that was imported
    try:
        for _ in range(times):
            cycle()

        def grown() -> dict[str, int]:
            return {what: count - before[what] for what, count in census().items() if count >= before[what] + times}

        wait_until(
            lambda: not grown(),
            lambda: f"{times} times opened and closed have left {grown()}; threads: {threading.enumerate()}",
        )
    finally:
        gc.unfreeze()


class FailureTheme(ServiceFaults, StateFaults, NodeFailures, Leaks):
    """Services and nodes are killed, frozen, partitioned and slowed down: who is told what, and what keeps working."""

    theme = "failure"
