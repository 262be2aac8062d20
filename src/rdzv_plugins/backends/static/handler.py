"""The static handler: given ranks, rounds that all nodes enter together, a fresh worker store in each."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rdzv_plugins import errors
from rdzv_plugins.backends.static import NAME, control, run_prefix
from rdzv_plugins.backends.static.control import ControlStore, Peers
from rdzv_plugins.backends.static.rounds import Arrival, Go, Over, StaticRounds, parse_over, this_agent
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.interfaces import (
    Failure,
    Outcome,
    RendezvousHandler,
    Request,
    RoundEvent,
    RoundInfo,
    StoreInfo,
    TellEvent,
)
from rdzv_plugins.kvstore.sockets.listening import bind
from rdzv_plugins.kvstore.sockets.reach import is_own_address, look, reach
from rdzv_plugins.kvstore.tcpstore.listener import (
    StoreReader,
    greet_store,
    hello_key,
    hello_of,
    once_begun,
    parse_hello,
    refuse_others,
    stranger_at,
    telling_whose,
)
from rdzv_plugins.kvstore.tcpstore.plain_client import KeyWatch
from rdzv_plugins.options import PortRange
from rdzv_plugins.rounds.ends import drain_wait, ended_error, parse_outcome
from rdzv_plugins.rounds.settings_check import torch_version, warn_of_other_torch
from rdzv_plugins.rounds.worker_stores import Serve, WorkerStores, native_server
from rdzv_plugins.runtime import Runtime
from rdzv_plugins.store import Store
from rdzv_plugins.timing import Reporting, within

if TYPE_CHECKING:
    import socket

logger = logging.getLogger(__name__)

_HOST_SLICE_S = 1.0
_PREFLIGHT_S = 5.0
_PROBE_S = 2.0
_BEFORE_WORKERS_S = 2.0
"""How much of the time in which workers have to end may be spent on telling the others, in seconds."""
_WHO = "node rank 0"
_TWO_WITH_ONE_RANK = "Give every node a --node-rank of its own."


class StaticHandler(RendezvousHandler):
    """Use from one thread at a time, except ``note_failure`` and the watch's call-backs."""

    def __init__(self, request: Request, rank: int, runtime: Runtime, serve: Serve = native_server) -> None:
        """``serve`` makes the native servers of both stores."""
        self._request, self._runtime, self._serve = request, runtime, serve
        self._options = request.options
        self._endpoint: Endpoint = request.target
        self._rank = rank
        self._nodes = request.max_nodes
        self._me = this_agent(runtime)
        self._round = self._entered = 0
        self._members: tuple[str, ...] = ()
        self._prefix = run_prefix(request.run_id)
        self._control: ControlStore | None = None
        self._workers = WorkerStores(
            request.options,
            timeout=request.options.read_timeout,
            shared_by=request.run_id if request.max_nodes > 1 else "",
            serve=serve,
            runtime=runtime,
        )
        self._peers: Peers | None = None
        self._watch: KeyWatch | None = None
        self._end_watch: KeyWatch | None = None
        self._restart = self._done = False
        self._lost_one = ""
        """The node whose loss has ended this node's round, and why; empty if none was lost."""
        self._waits_for = ""
        self._problem: Exception | None = None
        self._tell: TellEvent = lambda _: None

    def get_backend(self) -> str:
        return NAME

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_run_id(self) -> str:
        return self._request.run_id

    def is_closed(self) -> bool:
        return self._control is not None and self._control.record.ended() is not None

    def set_closed(self) -> None:
        if self._control is not None:
            self._control.record.end(Outcome("done", "it was closed by a node"))

    def num_nodes_waiting(self) -> int:
        self.raise_if_ended()
        return int(self._restart)

    def must_rejoin(self) -> bool:
        return self._restart

    def raise_if_ended(self) -> None:
        if self._problem is not None:
            raise self._problem

    def note_failure(self, failure: Failure) -> None:
        if self._control is not None:
            self._control.record.note_failure(self._round, failure)

    def first_failure(self) -> Failure | None:
        try:
            return self._control.record.first_failure(self._round) if self._control is not None else None
        except errors.StoreError:
            if isinstance(self._problem, errors.PeerFailed):  # node rank 0 has left since, after it has told the end
                return self._problem.failure
            raise

    def count_restart(self, note: str) -> Sequence[str]:
        return self._control.record.count_restart(self._round, note) if self._control is not None else [note]

    def waits_for(self) -> str:
        return self._waits_for

    def tell_events(self, tell: TellEvent) -> None:
        self._tell = tell

    def note_done(self) -> None:
        self._done = True  # the exit barrier tells the others

    def note_leaving(self, reason: str) -> None:
        """Tell the others at once: they stop their workers, instead of seeing them fail with those of this node.

        The workers here are stopped after that: it waits for a moment alone if node rank 0 stands still.
        """
        round_ = self._round
        if round_ and not self._done:
            rounds, lost = self._rounds, self._lost_as(reason)
            with contextlib.suppress(TimeoutError):
                within(_BEFORE_WORKERS_S, lambda: rounds.end(round_, lost), "rdzv-leaving", self._runtime)

    def peer_lost(self) -> bool:
        """Whether a node has said that it leaves. One that is silent is asked for when no restart is left."""
        if self._lost_one or self._control is None or self._nodes == 1:
            return bool(self._lost_one)
        try:
            ended = self._control.record.ended()
            if ended is not None and ended.end == "lost":  # node rank 0's word: whose workers fail now fail with it
                return True
            over = self._rounds.over(self._round)
        except errors.StoreError:  # node rank 0 is the lost one, which is told otherwise
            return False
        return over is not None and over.lost != "" and over.incarnation != self._me.incarnation

    def working_peers(self) -> Sequence[str]:
        if self._peers is None:
            return ()
        return self._peers.working(self._round, len(self._members))

    def lost_peers(self) -> Sequence[str]:
        try:
            return self._peers.lost(self._round, len(self._members)) if self._peers is not None else ()
        except (errors.StoreError, OSError) as error:  # node rank 0 is the lost one
            raise self._problem or self._lost(error) from error

    def stay(self) -> None:
        """Node rank 0 serves both stores."""
        if self._rank != 0 or self._peers is None:
            return
        has_left = self._control_().record.has_left
        try:
            others = [each for rank, each in enumerate(self._members) if rank != self._rank]
            drain_wait(lambda: self._is_needed() and not has_left(*others), self.working_peers, self._runtime)
        except errors.StoreError as error:
            logger.debug("could not wait for the other nodes: %s", error)

    def shutdown(self) -> bool:
        _stop(self._watch, self._end_watch)
        if self._peers is not None:
            self._peers.close()
        self._workers.shutdown()
        if self._control is not None:
            self._control.close()
        return True

    def next_rendezvous(self) -> RoundInfo:
        """Enter the next round and block until every node has. See ``rounds`` for how."""
        self.raise_if_ended()
        self._waits_for = ""
        deadline = self._runtime.monotonic() + self._options.timeout
        try:
            if self._control is None:
                self._open_control_store()
            go = self._join(deadline)
        except (errors.StoreError, OSError) as error:
            raise self._problem or self._lost(error) from error
        agents, where = self._rounds.agents(self._round), StoreInfo(go.master_addr, go.master_port)
        return RoundInfo(agents, self._rank, self._nodes, where)

    def leave(self, outcome: Outcome) -> None:
        """Tell the others. Node rank 0 stays until they have left, at most ``linger`` seconds."""
        _stop(self._watch, self._end_watch)
        if self._control is None:
            return
        record, serves = self._control.record, self._rank == 0
        try:
            if outcome.end == "failed" or (outcome.end == "lost" and serves):
                record.end(outcome)
                # nodes that wait in a round are told through the key they wait for
                self._rounds.settle(self._rounds.latest(), Go(ended=outcome))
            elif outcome.end == "lost" and self._problem is None:
                self._say_lost(outcome.reason)
            record.mark_left(self._me.incarnation)
            if serves:
                record.wait_left(self._present(), self._options.linger)
        except errors.StoreError as error:
            logger.debug("could not tell the other nodes how this one ended: %s", error)

    def _say_lost(self, reason: str) -> None:
        """Tell the nodes of this node's round that they wait for another agent in its place."""
        lost = self._lost_as(reason)
        if self._entered > self._round:
            self._rounds.withdraw(self._entered, self._rank, lost)
        elif self._round and not self._done:
            self._rounds.end(self._round, lost)

    def _lost_as(self, reason: str) -> Over:
        return Over(f"node rank {self._rank} on {self._me}", reason or "it does not say why", self._me.incarnation)

    def _present(self) -> list[str]:
        """The other agents that use this node's store: of the last complete round, or newer ones in their place."""
        newer = self._rounds.present(self._rounds.latest(), self._nodes)
        agents = dict(enumerate(self._members)) | newer
        return [incarnation for rank, incarnation in agents.items() if rank != self._rank]

    def _join(self, deadline: float) -> Go:
        rounds = self._rounds
        _stop(self._watch)
        self._workers.close()  # workers of the old round are cut off
        round_ = self._round + 1
        newest = rounds.latest()
        if newest >= round_:  # others are ahead: they asked for a restart, or this agent replaces one
            round_ = newest + 1 if rounds.is_settled(newest) else newest
            if self._round < round_ - 1:  # whoever had this rank there may be at work, or about to join again
                self._refuse_second(round_ - 1, rounds.holder(round_ - 1, self._rank))
        round_ = max(round_, rounds.open(round_, f"node rank {self._rank} ({self._me})"))
        replaced = rounds.arrive(round_, self._rank, self._me)
        if replaced is not None:
            self._refuse_second(round_, replaced)
            logger.warning("node rank %d of round %d was %s, now it is %s", self._rank, round_, replaced, self._me)
            rounds.replace(round_, self._rank, self._me)
        self._entered = round_
        # after arriving: a node that fails now either sees this round or has already left its record
        if (ended := self._control_().record.ended()) is not None:
            raise ended_error(ended, self._request)
        go = self._lead(round_, deadline) if self._rank == 0 else self._follow(round_, deadline)
        if go.ended is not None:
            raise ended_error(go.ended, self._request)
        if go.members[self._rank] != self._me.incarnation:
            if replaced is not None:  # the round was complete just before: the next one is ours
                self._round = round_
                return self._join(deadline)
            raise errors.SettingsDiffer(
                f"node rank {self._rank} of run {self._request.run_id!r} was taken by another agent in round {round_}",
                remedy=_TWO_WITH_ONE_RANK,
            )
        self._round, self._members = round_, go.members
        self._restart = self._done = False
        self._lost_one = ""
        self._tell(RoundEvent("complete", round_, self._rank, self._nodes))
        if self._nodes > 1:
            self._watch = self._watch_key(f"over/{round_}", self._on_over)
            self._end_watch = self._end_watch or self._watch_key("end", self._on_end)
        return go

    def _refuse_second(self, round_: int, holder: Arrival | None) -> None:
        """Raise ``SettingsDiffer`` if the agent that has this node's rank in the round lives. Waits for its answer."""
        if holder is None or holder.incarnation == self._me.incarnation or holder.has_ended(self._runtime):
            return
        over, peers = self._rounds.over(round_), self._peers
        if peers is None or (over is not None and over.incarnation == holder.incarnation):  # it is leaving
            return
        logger.info("node rank %d is %s: asking whether that agent lives", self._rank, holder)
        if not peers.lives(holder):
            return
        taken = f"node rank {self._rank} is {holder}, whose agent lives"
        self._rounds.refuse(round_, f"{self._me} tried to join and was refused: {taken}")
        raise errors.SettingsDiffer(
            f"this node cannot take part in run {self._request.run_id!r}: {taken}", remedy=_TWO_WITH_ONE_RANK
        )

    def _lead(self, round_: int, deadline: float) -> Go:
        """As node rank 0, wait for all, serve the round's worker store, then publish it."""
        rounds, reporting, seen = self._rounds, Reporting(runtime=self._runtime), -1
        while (arrivals := rounds.wait_arrivals(round_, self._nodes, _HOST_SLICE_S)) is None:
            if rounds.is_settled(round_):  # a failing node has ended the job
                return rounds.settle(round_, Go())
            if (changes := rounds.changes(round_)) != seen:
                rounds.publish_missing(round_, rounds.missing(round_, self._nodes))
                seen = changes
            self._report(round_, deadline, reporting)
        address = self._master_address()
        store = self._workers.open(address, "the workers' store")
        self._tell(RoundEvent("served", round_, self._rank, self._nodes))
        members = tuple(arrival.incarnation for arrival in arrivals)
        go = rounds.settle(round_, Go(members, address, store.port))
        for rank in rounds.missing(round_, self._nodes).left if go.ended is None else ():  # just now
            who = f"node rank {rank} on {arrivals[rank]}"
            rounds.end(round_, Over(who, "it left before the round was complete", members[rank]))
        return go

    def _follow(self, round_: int, deadline: float) -> Go:
        reporting = Reporting(runtime=self._runtime)
        self._waits_for = f"round {round_} at {self._endpoint}: node rank 0 has not said yet that all nodes are there"
        while (go := self._rounds.wait_go(round_, min(reporting.next_at, deadline))) is None:
            self._report(round_, deadline, reporting)
        return go

    def _report(self, round_: int, deadline: float, reporting: Reporting) -> None:
        """Report who is missing if it is time to, or raise ``RendezvousTimeout`` with that."""
        now = self._runtime.monotonic()
        due = reporting.is_due()
        if not due and self._waits_for and now < deadline:
            return
        facts = self._waits_for = self._facts(round_)
        if now >= deadline:
            text = f"run {self._request.run_id!r}: {facts}, after {self._options.timeout:g} s"
            if self._rank == 0:  # the others wait no longer either
                gave_up = Outcome("lost", text, exit_code=errors.RendezvousTimeout.exit_code)
                self._control_().record.end(gave_up)
                self._rounds.settle(round_, Go(ended=gave_up))
            raise errors.RendezvousTimeout(
                text, remedy="Look at the output of those nodes. --rdzv-conf timeout=SECONDS waits longer."
            )
        if due:
            logger.info("waiting: %s (%.0f s left)", facts, deadline - now)

    def _facts(self, round_: int) -> str:
        """Who is there and who is missing, as node rank 0 has published it."""
        missing = self._rounds.published_missing(round_)
        where = f"in round {round_} at {self._endpoint}"
        if missing is None:
            facts = f"node rank 0, which says who is missing, is not {where} yet"
        else:
            who = str(missing) or "node rank 0 has not started it"
            facts = f"{self._nodes - len(missing)} of {self._nodes} nodes are {where}; {who}"
        return "; ".join(each for each in (facts, self._rounds.refused(round_), self._lost_one) if each)

    def _open_control_store(self) -> None:
        """Serve it on node rank 0, reach it from the others, and make sure that it belongs to this job."""
        options = self._options
        if self._rank == 0:
            native = self._serve if options.is_native else None
            listener = self._listen()
            store = control.serve(listener, self._prefix, options.read_timeout, self._runtime, native=native)
            hello = hello_of(self._request, self._nodes, torch_version(), self._runtime)
            store.client.set(hello_key(NAME), hello.text)
        else:
            stranger = functools.partial(stranger_at, self._request, self._endpoint)
            greet = functools.partial(greet_store, stranger=stranger)
            connection = reach(self._endpoint, options.timeout, _WHO, greet, runtime=self._runtime)
            store = ControlStore(connection, self._prefix, options.read_timeout, self._runtime)
            with contextlib.ExitStack() as if_refused:
                if_refused.callback(store.close)
                self._compare(store.client)
                if_refused.pop_all()
        self._control = store
        if self._nodes > 1:
            me = self._me.incarnation
            self._peers = Peers(store, self._prefix, me, self._rank, self._on_lost, self._runtime)

    def preflight(self, held: contextlib.ExitStack) -> str:
        """See ``Backend.preflight``."""
        if self._rank == 0:
            held.enter_context(self._listen())
            return f"this node will serve {self._endpoint}"
        if not look(self._endpoint, _WHO, greet_store, self._runtime):
            return ""
        connection = reach(self._endpoint, _PREFLIGHT_S, _WHO, greet_store, runtime=self._runtime)
        with contextlib.closing(ControlStore(connection, self._prefix, _PREFLIGHT_S, self._runtime)) as store:
            self._compare(store.client)
        return f"{_WHO} answers at {self._endpoint}, with the same settings"

    def _listen(self) -> socket.socket:
        if not is_own_address(self._endpoint.host, self._runtime):
            self._refuse_second_server()
            logger.warning(
                "this is node rank 0, but %s is not an address of this machine (%s)", self._endpoint, self._me.host
            )
        port = self._endpoint.port
        with telling_whose(self._request, self._endpoint):
            try:
                what = f"{_WHO} of run {self._request.run_id!r}"
                return bind(self._endpoint.host, PortRange(port, port), what, self._runtime)
            except errors.AddressInUse:
                self._refuse_second_server()
                raise

    def _refuse_second_server(self) -> None:
        """Raise ``SettingsDiffer`` if another agent serves this run at the endpoint, and the run has not ended."""
        if self._nodes == 1:  # then it is another job
            return
        run = self._request.run_id
        try:
            with StoreReader(self._endpoint, _PROBE_S, self._runtime) as reader:
                hello = once_begun(lambda: reader.hello(NAME), self._runtime)
                if hello is None or hello.run_id != run or reader.held(f"{self._prefix}/end") is not None:
                    return
        except (OSError, ValueError):  # what listens there is something else, or nobody does
            return
        raise errors.SettingsDiffer(
            f"this node cannot take part in run {run!r}: node rank 0 is {hello}, which serves {self._endpoint}",
            remedy=f"{_TWO_WITH_ONE_RANK} For another job choose another port.",
        )

    def _compare(self, store: Store) -> None:
        key = hello_key(NAME)
        try:
            refuse_others(store, [key], self._request, self._endpoint, self._runtime)
            hello = parse_hello(store.get(key))
        except (errors.StoreError, ValueError) as error:
            raise errors.EndpointUnreachable(
                f"{self._endpoint} is a torch TCPStore, but not that of a 'static' node rank 0: {error}",
                remedy="Start every node with rdzv-run and --rdzv-backend=static, or choose another port.",
            ) from error
        host = f"node rank 0 on {hello}"
        if hello.run_id != self._request.run_id:
            raise errors.RunIdMismatch(
                f"{self._endpoint} serves run {hello.run_id!r} ({host}), not {self._request.run_id!r}",
                remedy="Give all nodes of a job the same --rdzv-id, and each job a port of its own.",
            )
        if hello.nnodes != self._nodes:
            raise errors.SettingsDiffer(
                f"this node was started with --nnodes={self._nodes}, {host} with --nnodes={hello.nnodes}",
                remedy="Start all nodes with the same --nnodes.",
            )
        if hello.torch:
            warn_of_other_torch(hello.torch, host)

    def _master_address(self) -> str:
        if self._request.local_addr:
            return self._request.local_addr
        return "127.0.0.1" if self._endpoint.host == "localhost" else self._endpoint.host

    def _control_(self) -> ControlStore:
        assert self._control is not None, "used before the first round"
        return self._control

    @property
    def _rounds(self) -> StaticRounds:
        return self._control_().rounds

    def _is_needed(self) -> bool:
        """Whether node rank 0 has to stay. Raises the reason if the job has failed."""
        self.raise_if_ended()
        if self._restart:  # its agent is about to end, and takes part in no other round
            done = Outcome("lost", "node rank 0 was done, and does not run again")
            self._rounds.settle(self._rounds.latest(), Go(ended=done))
        return not self._restart

    def _watch_key(self, key: str, on_value: Callable[[bytes], None]) -> KeyWatch:
        store = self._control_()
        return KeyWatch(store.host, store.port, f"{self._prefix}/{key}", on_value, self._on_lost, self._runtime)

    def _on_over(self, value: bytes) -> None:
        over = parse_over(value)
        if over.lost and over.incarnation == self._me.incarnation:
            return
        self._lost_one = str(over) if over.lost else ""
        follows = (
            "this node's workers stop, and wait for another agent there"
            if over.lost
            else "this node's workers restart too"
        )
        logger.info("%s: %s", over, follows)
        self._tell(RoundEvent("over", self._round, reason=str(over), cause="lost" if over.lost else "asked"))
        self._restart = True

    def _on_end(self, value: bytes) -> None:
        outcome = parse_outcome(value)
        if outcome.end != "done":
            self._problem = ended_error(outcome, self._request)

    def _on_lost(self, error: Exception) -> None:
        self._problem = self._problem or self._lost(error)
        self._control_().interrupt(str(error))

    def _lost(self, error: BaseException) -> errors.EndpointLost:
        if self._rank == 0:
            return errors.EndpointLost(
                f"this node serves run {self._request.run_id!r} at {self._endpoint} and cannot reach itself: {error}",
                remedy="Its own store has ended, or a sandbox, a firewall or a limit of this machine forbids it.",
            )
        return errors.EndpointLost(
            f"lost node rank 0 of run {self._request.run_id!r} at {self._endpoint}: {error}",
            remedy="Its agent has ended or its machine cannot be reached. Its own output says why.",
        )


def _stop(*watches: KeyWatch | None) -> None:
    for watch in watches:
        if watch is not None:
            watch.stop()
