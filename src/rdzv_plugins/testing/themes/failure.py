"""Theme ``failure``: the service, the network or nodes fail, and nothing is left behind.

For a ``CoordinationBackend``: services differ. One recognises sessions by their connections, another lets them go on
while it is away. What all of them promise is checked by ``Subject.settle``: a session lives, with its keys and with
every event, or it is lost, and then everybody is told.

For a ``RendezvousBackend``: torch's handler expects an answer or an error that it knows. How long an answer may take is
not promised, so a silently partitioned network is not tried.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rdzv_plugins.coordination import CoordinationBackend, Session
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable, RendezvousFailed
from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.harness import Service
from rdzv_plugins.testing.job import NO_RELAY, ContractJob, JobTheme, ServingNode, state_of
from rdzv_plugins.testing.nodes import (
    NodeError,
    NodeProcess,
    NodesJob,
    NodeTheme,
    needs,
    regroup,
    take_in,
    together,
    told,
)
from rdzv_plugins.testing.parts import (
    LONG,
    PATIENCE,
    Losses,
    Recorder,
    assert_says,
    at_rest,
    bounded,
    calls,
    census,
    end_of,
    frozen,
    keys_of,
    opened,
    wait_gone,
    wait_until,
)
from rdzv_plugins.testing.relay import Relay

T = PATIENCE
_CYCLES = 3
_OUTAGE_S = 10
"""How many seconds nodes look for an endpoint that is gone, if there is an option for that."""
_NOT_SERVED = "no node serves the endpoint: the job survives the loss of any node"
_SHORT_S = 0.3
"""The time-out, in seconds, of requests that nobody will answer."""


def split_endpoint(endpoint: str) -> tuple[str, str, int, str] | None:
    """What precedes the host, the host, the port, and what follows; None unless there is one host and one port."""
    found = re.fullmatch(r"((?:\w+://)?(?:[^@/,]*@)?)(\[[^\]]+\]|[^:/,\[\]@]+):(\d+)(/[^,]*)?", endpoint)
    return (found[1], found[2].strip("[]"), int(found[3]), found[4] or "") if found else None


class JobRelay(Relay):
    """A relay in front of an endpoint, made of its parts; on this machine wherever the service is."""

    def __init__(self, before: str, host: str, port: int, after: str) -> None:
        super().__init__(host, port)
        # a name that also leads to the relay is kept: a certificate may be for it
        self.endpoint = f"{before}{host if host == 'localhost' else '127.0.0.1'}:{self.port}{after}"
        """The endpoint as dialled through the relay."""


class Subject:
    """A node whose service or network fails: its session, an ephemeral key, a key that stays, a watch."""

    def __init__(self, job: ContractJob, ttl: float, endpoint: str | None = None) -> None:
        conf = job.not_serving() if endpoint is not None else {}
        self.backend: CoordinationBackend = job.created(endpoint, conf=conf)
        self.losses, self.told, self.where = Losses(), Recorder(), endpoint or job.endpoint
        self.session = opened(self.backend, ttl, self.losses)
        self.session.put({"mine": b""}, ephemeral=True, timeout=T)
        self.session.put({"kept": b""}, timeout=T)
        self.session.watch("seen/", self.told, timeout=T)

    def ask(self, timeout: float) -> bool:
        """Whether a request is done; False if it was not done in time. Raises ``ConnectionLost`` after the end."""
        try:
            bounded("put()", lambda: self.session.put({"asked": b""}, timeout=timeout), timeout)
        except TimeoutError as error:
            assert_says(error)
            return False
        return True

    def nobody_answers(self) -> None:
        """Check that every kind of request ends in a ``TimeoutError``, and in time."""
        for what, ask in calls(self.session, _SHORT_S).items():
            try:
                bounded(what, ask, _SHORT_S)
            except TimeoutError as error:
                assert_says(error)
            else:
                raise AssertionError(f"{what} was answered by a network that is parted")

    def ask_for(self, seconds: float) -> None:
        """Keep asking for that long while nobody answers, or until the session is lost."""
        end = time.monotonic() + seconds
        with contextlib.suppress(ConnectionLost):
            while time.monotonic() < end:
                self.ask(_SHORT_S)

    def settle(self, observer: Session) -> bool:
        """Whether the session lives, once that is known; checks all the consequences."""
        end = time.monotonic() + T
        try:
            while not self.ask(1.0):
                assert time.monotonic() < end, "it is neither answered nor lost, though the service is back"
        except ConnectionLost:
            self.is_over(observer)
            return False
        assert self.losses.none, "on_lost was called, and the session goes on"
        there = keys_of(observer)
        assert {"mine", "kept"} <= there.keys(), f"the session goes on, and of its keys only these are there: {there}"
        observer.put({"seen/fence": b""}, timeout=T)
        try:
            told = self.told.until(lambda events: events and events[-1].key == "seen/fence")
        except AssertionError as error:
            raise AssertionError(f"the session goes on, and its watch does not: {error}") from None
        there = keys_of(observer, "seen/")
        assert {each.key for each in told} >= there.keys(), "the session goes on, and its watch has missed an event"
        assert self.losses.none, "on_lost was called, and the session goes on"
        return True

    def is_over(self, observer: Session | None) -> ConnectionLost:
        """Check that the session is lost, stays so, and everybody is told. Returns the reason given to ``on_lost``."""
        error = self.losses.next()
        assert isinstance(error, ConnectionLost)
        assert str(error), "on_lost was not told why"
        for _ in range(2):
            for what, ask in calls(self.session, T, "late").items():
                with pytest.raises(ConnectionLost, match=r"\w"):
                    bounded(f"{what} after the end of the session", ask)
        if observer is not None:
            wait_gone(observer, "mine")
            assert "late" not in keys_of(observer)
        self.session.close()
        assert self.losses.none, "on_lost was called twice"
        return error

    def comes_back(self, ttl: float) -> None:
        """Check that a session of the same backend can be opened again, as by a node that comes back."""
        again = opened(self.backend, ttl)
        assert again.put({"back": b""}, ephemeral=True, timeout=T) is not None
        assert "back" in keys_of(again)
        again.close()

    def cannot_come_back(self) -> None:
        """Check that opening a session says who is not there, and what to do, within its time-out."""
        ask = functools.partial(self.backend.open_session, LONG, on_lost=Losses(), timeout=1.0)
        with pytest.raises(EndpointUnreachable) as raised:
            bounded("open_session()", ask, 1.0)
        _, host, port, _ = split_endpoint(self.where) or ("", self.where, "", "")
        assert_says(raised.value, host, str(port))


class FaultTheme(JobTheme):
    """A theme whose tests have a ``service`` that fails, or a ``relay`` in front of it."""

    @pytest.fixture
    def service(self, job: ContractJob) -> Iterator[Service | None]:
        """The harness's service, or else the process of the node that serves the endpoint; None if there is neither."""
        service: Any = job.harness.service
        if service is not None:
            try:
                yield service
            finally:
                if not service.pids:
                    service.start_again()
        elif job.harness.kind == "coordination":
            service = ServingNode(job)
            service.start_again()
            try:
                yield service if service.serves else None
            finally:
                job.close()  # its clients first
                service.kill()
        else:
            yield None

    @pytest.fixture
    def relay(self, job: ContractJob) -> Iterator[JobRelay | None]:
        """A relay in front of the endpoint, or None; the first node serves the endpoint, if any node does."""
        parts = split_endpoint(job.endpoint) if job.harness.dialled else None
        if parts is None:
            yield None
        else:
            with JobRelay(*parts) as relay:
                yield relay
                relay.let_go()
                job.close()


class ServiceFaults(FaultTheme, kind="coordination"):
    """The service is killed, frozen, partitioned, slow."""

    def test_a_service_that_is_killed_and_started_again(self, job: ContractJob, service: Service) -> None:
        subject = Subject(job, job.ttl)
        service.kill()
        subject.ask_for(_SHORT_S)
        service.start_again()
        observer = job.session()
        subject.settle(observer)
        subject.comes_back(job.ttl)
        subject.session.close()
        wait_gone(observer, "mine")

    def test_a_service_that_is_killed_for_good(self, job: ContractJob, service: Service) -> None:
        subject = Subject(job, job.ttl)
        service.kill()
        subject.is_over(None)
        subject.cannot_come_back()
        bounded("close() of the backend", subject.backend.close)

    def test_a_service_that_is_frozen_for_longer_than_sessions_live(self, job: ContractJob, service: Service) -> None:
        subject = Subject(job, job.ttl)
        with frozen(service):
            subject.ask_for(1.5 * subject.session.ttl)
        observer = job.session()
        subject.settle(observer)
        subject.comes_back(job.ttl)

    def test_connections_that_break_while_the_service_goes_on(self, job: ContractJob, relay: JobRelay) -> None:
        observer = job.session()
        subject = Subject(job, job.ttl, relay.endpoint)
        observer.put({"seen/before": b""}, timeout=T)
        subject.told.take(1)
        relay.cut()
        observer.put({"seen/meanwhile": b""}, timeout=T)
        subject.settle(observer)
        subject.comes_back(job.ttl)

    def test_a_network_that_is_parted_for_a_moment_loses_nobody(self, job: ContractJob, relay: JobRelay) -> None:
        observer = job.session()
        subject = Subject(job, LONG, relay.endpoint)
        relay.hold()
        observer.put({"seen/meanwhile": b""}, timeout=T)
        subject.nobody_answers()
        relay.let_go()
        assert subject.settle(observer), "the session was lost, long before its time to live"

    def test_a_network_that_is_parted_for_longer_than_sessions_live(self, job: ContractJob, relay: JobRelay) -> None:
        # the others are told that the node is gone, and it finds out itself; nobody goes on with half of it
        observer, others = job.session(), Recorder()
        subject = Subject(job, job.ttl, relay.endpoint)
        observer.watch("mine", others, timeout=T)
        relay.hold()
        assert others.take(2, end_of(subject.session.ttl))[1] == ("mine", None)
        subject.cannot_come_back()
        told_meanwhile = not subject.losses.none
        relay.let_go()
        error = subject.is_over(observer)
        assert error.silent or not told_meanwhile, f"nothing was heard for its time to live; not said by: {error!r}"
        subject.comes_back(job.ttl)

    def test_a_slow_network_is_only_slow(self, job: ContractJob, relay: JobRelay) -> None:
        observer = job.session()
        relay.slow(0.1)
        subject = Subject(job, max(job.ttl, 15.0), relay.endpoint)
        for count in range(3):
            observer.put({f"seen/{count}": b""}, timeout=T)
            assert subject.session.create(f"made/{count}", b"", timeout=T)[0]
        assert subject.told.take(3) == [(f"seen/{count}", b"") for count in range(3)]
        assert subject.settle(observer), "the session was lost, though all its signs of life come through"


class StateFaults(FaultTheme, kind="state"):
    """The service is killed; connections break, are refused, are slow."""

    def test_a_state_whose_service_is_killed_and_started_again(self, job: ContractJob, service: Service) -> None:
        node = job.created()
        _, token, _ = node.set_state(b"1")
        service.kill()
        try:
            assert not answered("get_state()", node.get_state), "a state was read of a service that is not there"
            assert not answered("set_state()", lambda: node.set_state(b"2", token)), "it was written"
        finally:
            service.start_again()
        assert state_of(job.created()) == (b"1" if service.keeps_data else None)

    def test_a_state_whose_connections_break_is_right_or_says_that_it_is_lost(
        self, job: ContractJob, relay: JobRelay
    ) -> None:
        other, node = two_states(job, relay)
        _, token, _ = node.set_state(b"1")
        relay.cut()
        assert other.set_state(b"2", token)[2] is True
        if answered("get_state()", node.get_state):
            assert state_of(node) == b"2"
            assert node.set_state(b"3", token)[:1] == (b"2",)
        assert state_of(other) == b"2", "a write with a stale token was done"

    def test_a_state_that_cannot_be_reached_any_more_is_an_error_and_not_an_empty_state(
        self, job: ContractJob, relay: JobRelay
    ) -> None:
        other, node = two_states(job, relay)
        node.set_state(b"1")
        relay.refuse()
        assert not answered("get_state()", node.get_state), "a state that cannot be reached was read"
        assert not answered("set_state()", lambda: node.set_state(b"2")), "it was written"
        assert state_of(other) == b"1"

    def test_a_slow_network_is_only_slow_for_a_state(self, job: ContractJob, relay: JobRelay) -> None:
        other, node = two_states(job, relay)
        relay.slow(0.1)
        _, token, written = node.set_state(b"1")
        assert written, "set_state() says that it has not written, and nobody else has"
        assert other.set_state(b"2", token)[2] is True
        assert node.set_state(b"3", token)[2] is False
        assert state_of(node) == b"2"


def two_states(job: ContractJob, relay: JobRelay) -> tuple[Any, Any]:
    """The first serves if any node does, the other reaches it through the relay."""
    return job.created(), job.created(relay.endpoint, conf=job.not_serving())


def answered(what: str, ask: Callable[[], object]) -> bool:
    """Whether the call returns; if not, it has to raise an error that the contract names, and that says so.

    That is a rendezvous error of ours or of torch's, or an ``OSError``.
    """
    try:
        bounded(what, ask)
    except Exception as error:
        known = isinstance(error, (RendezvousFailed, OSError)) or any(
            each.__name__ == "RendezvousError" and each.__module__.startswith("torch.") for each in type(error).__mro__
        )
        if not known:
            raise AssertionError(
                f"{what} raised {type(error).__name__}, not EndpointLost or the like: {error}"
            ) from error
        assert_says(error)
        return False
    return True


class NodeFailures(NodeTheme):
    """Losses of nodes: part of the theme ``failure``."""

    def test_node_is_killed_while_it_waits(self) -> None:
        """A node that is killed while nodes wait is in no round that goes on: the others are complete without it."""
        with self.nodes("3") as job:
            host = self.waiting_node(job)  # it may serve, and it has to have a place before the others fill the round
            victim = self.waiting_node(job)
            victim.kill()
            others = [job.node(node_rank=rank) for rank in ((1, 2) if job.ranks_have_to_be_given else (None, None))]
            for node in others:
                node.join()
            together([host, *others], f"3 nodes in one round, without {victim}, which was killed")

    def test_rounds_with_losses_leave_nothing_behind(self) -> None:
        """A node that loses its peer again and again goes on, and has no thread, descriptor or process more for it."""
        with self.nodes("2") as job:
            survivor = self.waiting_node(job)  # the first one: it leads, and serves all the time if any node does
            victim = job.node()
            victim.join()
            together([survivor, victim])
            assert self.host_of([survivor, victim]) is not victim
            held: list[dict[str, int]] = []
            for _ in range(_CYCLES):
                victim.kill()
                victim = job.node(node_rank=victim.request.node_rank)
                take_in([survivor], victim.join())
                held.append(at_rest(survivor.resources))
            self._assert_no_more(survivor, held)

    @needs(
        lambda theme: theme.harness.kind == "coordination" and theme.elastic(),
        "not promised: without sessions a frozen node is not detected",
    )
    def test_frozen_node_is_evicted_and_comes_back(self) -> None:
        """A node that stands still is lost after its time to live; when it goes on it enters a round of its own."""
        with self.nodes("1:2", conf=self.conf(last_call_timeout=1)) as job:
            nodes = job.start(2)
            sleeper, (awake,) = self.victim_of(nodes)
            old = awake.rank
            sleeper.freeze()
            told([awake], f"{sleeper} stands still")
            regroup([awake])
            sleeper.thaw()
            assert sleeper.await_change(), f"{sleeper} does not notice that it was lost"
            take_in([awake], sleeper.join())
            if self.declares(Capability.NODE_REPLACEMENT):
                assert awake.rank == old, "who stays keeps its rank"

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
                errors = []
                if running:  # it is told what is wrong, or to restart, since its workers have lost their store
                    try:
                        told([node], "the endpoint is gone")
                    except NodeError as raised:
                        errors.append(raised)
                    node.join()
                for error in [*errors, node.joining.error()]:
                    error.must_be("EndpointLost", "EndpointUnreachable", saying=re.escape(job.endpoint))
                node.leave("lost", "the endpoint is gone")
        return None

    def test_agents_that_end_leave_nothing_behind(self) -> None:
        """After leave and shutdown a node holds no thread, descriptor or process of its agent, and its process ends."""
        with self.nodes("2") as job:
            nodes = [job.node(), job.node()]
            held: list[tuple[dict[str, int], ...]] = []
            for cycle in range(_CYCLES):
                nodes[0].join()
                wait_until(lambda: self.registered(nodes[0]), "the first waits")  # what there is to serve, it serves
                nodes[1].join()
                together(nodes)
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

    def _goes_on_without_rank_0(self, job: NodesJob, nodes: list[NodeProcess]) -> None:
        """No node is special: the one with rank 0 is lost like any other."""
        victim = next(node for node in nodes if node.rank == 0)
        others = self.others_than(victim, nodes)
        victim.kill()
        again = job.node()
        if self.harness.kind == "coordination":
            told(others, f"{victim} was lost")
        take_in(others, again.join())
        self.gap(_NOT_SERVED)

    def _have_reached_it(self, nodes: list[NodeProcess]) -> bool:
        known = all(node.joining.done() or self.registered(node) for node in nodes)
        return known and (not self.harness.dialled or all(node.traffic() for node in nodes))

    @staticmethod
    def _assert_no_more(node: NodeProcess, held: list[dict[str, int]]) -> None:
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
        at_once = {"linger": "0"} if self.accepts("linger") else {}

        def cycle() -> None:
            one_job, recorder = ContractJob(self.harness, self.directory), Recorder()
            one, two = (opened(one_job.created(conf=at_once)) for _ in range(2))
            one.watch("", recorder, timeout=T)
            two.create("k", b"", ephemeral=True, timeout=T)
            recorder.take(1)
            two.close()
            one_job.close()  # including the session that is left

        assert_leaves_nothing(cycle)

    def test_nothing_is_left_of_sessions_that_were_cut_off(self, job: ContractJob) -> None:
        parts = split_endpoint(job.endpoint) if job.harness.dialled else None
        if parts is None:
            return self.gap(NO_RELAY)
        job.session()

        def cycle() -> None:
            with JobRelay(*parts) as relay:
                backend = job.created(relay.endpoint, conf=job.not_serving())
                session = opened(backend, job.ttl, Losses())
                session.watch("", Recorder(), timeout=T)
                relay.refuse()
                with contextlib.suppress(ConnectionLost, TimeoutError):
                    session.put({"k": b""}, timeout=0.1)
                backend.close()

        assert_leaves_nothing(cycle)  # each may wait for a service to which it cannot say goodbye
        return None


def assert_leaves_nothing(cycle: Callable[[], None]) -> None:
    """Assert that some cycles leave fewer than that of anything: what is made once for a process may stay."""
    cycle()
    before = at_rest(census)  # otherwise what is still to go would hide what stays
    gc.freeze()  # from now on census() looks for garbage only in what is new, not in everything that was imported
    try:
        for _ in range(_CYCLES):
            cycle()

        def grown() -> dict[str, int]:
            return {what: count - before[what] for what, count in census().items() if count >= before[what] + _CYCLES}

        wait_until(
            lambda: not grown(),
            lambda: f"{_CYCLES} times opened and closed have left {grown()}; threads: {threading.enumerate()}",
        )
    finally:
        gc.unfreeze()


class FailureTheme(ServiceFaults, StateFaults, NodeFailures, Leaks):
    """Services and nodes are killed, frozen, partitioned and slowed down: who is told what, and what keeps working."""

    theme = "failure"
