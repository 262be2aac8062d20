"""The static handler: given ranks, rounds that all nodes enter together, a fresh worker store in each."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable

from torch.distributed import DistError, PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

from rdzv_plugins import errors
from rdzv_plugins.backends.static.rounds import Arrival, Go, Rounds, parse_go
from rdzv_plugins.elastic.ended import ended_error
from rdzv_plugins.elastic.torch_errors import as_torch
from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.interfaces import Failure, Outcome, Request
from rdzv_plugins.kvstore.ends import parse_outcome
from rdzv_plugins.kvstore.job_record import JobRecord
from rdzv_plugins.kvstore.reach import is_own_address
from rdzv_plugins.kvstore.torch_store import connect, serve
from rdzv_plugins.kvstore.watch import AwaitedKey, Watch
from rdzv_plugins.kvstore.worker_stores import WorkerStores
from rdzv_plugins.options import PortRange

logger = logging.getLogger(__name__)

_REPORT_EVERY_S = 10.0
_HOST_SLICE_S = 1.0
_HELLO = "rdzv_plugins.static.hello"


class StaticHandler:
    """A ``RendezvousHandler``. One thread at a time, save ``note_failure`` and the watch's call-backs."""

    def __init__(self, request: Request, rank: int) -> None:
        self._request = request
        self._options = request.options
        self._endpoint = parse_endpoint(request.endpoint, None)
        self._rank = rank
        self._nodes = request.max_nodes
        self._me = Arrival(uuid.uuid4().hex, socket.gethostname(), os.getpid())
        self._round = 0
        self._members: tuple[str, ...] = ()
        self._prefix = f"rdzv_plugins.static.{request.run_id}"
        self._control: TCPStore | None = None
        self._workers = WorkerStores(request.options, timeout=request.options.read_timeout)
        self._rounds: Rounds | None = None
        self._record: JobRecord | None = None
        self._watch: Watch | None = None
        self._end_watch: Watch | None = None
        self._restart = False
        self._problem: Exception | None = None

    def get_backend(self) -> str:
        return "static"

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_run_id(self) -> str:
        return self._request.run_id

    def is_closed(self) -> bool:
        return self._record is not None and self._record.ended() is not None

    def set_closed(self) -> None:
        if self._record is not None:
            self._record.end(Outcome("done", "it was closed by a node"))

    def num_nodes_waiting(self) -> int:
        self.raise_if_ended()
        return int(self._restart)

    def must_rejoin(self) -> bool:
        return self._restart

    def raise_if_ended(self) -> None:
        if self._problem is not None:
            raise self._problem

    def note_failure(self, failure: Failure) -> None:
        if self._record is not None:
            self._record.note_failure(self._round, failure)

    def first_failure(self) -> Failure | None:
        return self._record.first_failure(self._round) if self._record is not None else None

    def shutdown(self) -> bool:
        self._stop_watches()
        self._workers.shutdown()
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Enter the next round and block until every node has. See ``rounds`` for how."""
        self.raise_if_ended()
        deadline = time.monotonic() + self._options.timeout
        try:
            if self._rounds is None:
                self._open_control_store()
            go = self._join(deadline)
        except errors.RendezvousFailed as error:
            raise as_torch(error) from error.__cause__
        except (DistError, OSError) as error:
            raise self._problem or as_torch(self._lost(error)) from error
        store = PrefixStore(f"agents/{self._round}", self._rounds_().store)
        return RendezvousInfo(store, self._rank, self._nodes, RendezvousStoreInfo(go.master_addr, go.master_port))

    def leave(self, outcome: Outcome) -> None:
        """Tell the others. Node rank 0 stays until they have left, at most ``linger`` seconds."""
        self._stop_watches()
        if self._record is None:
            return
        serves = self._rank == 0
        try:
            if outcome.end == "failed" or (outcome.end == "lost" and serves):
                self._record.end(outcome)
                # those who wait in a round are told by the key that they wait for
                self._rounds_().settle(self._rounds_().latest(), Go(ended=outcome))
            self._record.mark_left(self._me.incarnation)
            if serves:
                self._record.wait_left(self._present(), self._options.linger)
        except DistError as error:
            logger.debug("could not tell the other nodes how this one ended: %s", error)

    def _present(self) -> list[str]:
        """The other agents that hold on to this node's store: of the last complete round, or newer in their place."""
        newer = self._rounds_().present(self._rounds_().latest(), self._nodes)
        agents = dict(enumerate(self._members)) | newer
        return [incarnation for rank, incarnation in agents.items() if rank != self._rank]

    def _join(self, deadline: float) -> Go:
        rounds = self._rounds_()
        self._stop_round_watch()
        self._workers.close()  # workers of the old round are cut off
        round_ = self._round + 1
        newest = rounds.latest()
        if newest >= round_:  # others are ahead: they asked for a restart, or this agent replaces one
            round_ = newest + 1 if rounds.is_settled(newest) else newest
        round_ = max(round_, rounds.open(round_, f"node rank {self._rank} ({self._me})"))
        replaced = rounds.arrive(round_, self._rank, self._me)
        if replaced is not None:
            logger.warning("node rank %d of round %d was %s, now it is %s", self._rank, round_, replaced, self._me)
        # after arriving: a node that fails now either sees this round or has left its record before
        ended = self._record.ended() if self._record is not None else None
        if ended is not None:
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
                remedy=f"Two agents were started with --node-rank={self._rank}: give each node its own.",
            )
        self._round, self._members = round_, go.members
        self._restart = False
        if self._nodes > 1:
            self._watch = self._watch_key(f"over/{round_}", self._on_over)
            self._end_watch = self._end_watch or self._watch_key("end", self._on_end)
        return go

    def _lead(self, round_: int, deadline: float) -> Go:
        """Node rank 0: wait for all, serve the round's worker store, then publish it."""
        rounds, next_report = self._rounds_(), time.monotonic() + _REPORT_EVERY_S
        while (arrivals := rounds.wait_arrivals(round_, self._nodes, _HOST_SLICE_S)) is None:
            if rounds.is_settled(round_):  # a failing node has ended the job
                return rounds.settle(round_, Go())
            next_report = self._report(round_, deadline, next_report)
        address = self._master_address()
        store = self._workers.open(address, "the workers' store")
        members = tuple(arrival.incarnation for arrival in arrivals)
        return rounds.settle(round_, Go(members, address, store.port))

    def _follow(self, round_: int, deadline: float) -> Go:
        next_report = time.monotonic() + _REPORT_EVERY_S
        store = self._control_()
        awaited = AwaitedKey(store.host, store.port, f"{self._prefix}/go/{round_}")
        try:
            while (go := awaited.wait(min(next_report, deadline) - time.monotonic())) is None:
                next_report = self._report(round_, deadline, next_report)
        finally:
            awaited.stop()
        return parse_go(go)

    def _report(self, round_: int, deadline: float, next_report: float) -> float:
        """Say who is missing, or raise ``RendezvousTimeout`` saying it; returns when to report next."""
        now = time.monotonic()
        if now < min(next_report, deadline):
            return next_report
        missing = self._rounds_().missing(round_, self._nodes)
        who = f"missing: node rank {', '.join(map(str, missing))}" if missing else "node rank 0 has not started it"
        facts = f"{self._nodes - len(missing)} of {self._nodes} nodes are in round {round_} at {self._endpoint}; {who}"
        if now >= deadline:
            raise errors.RendezvousTimeout(
                f"run {self._request.run_id!r}: {facts}, after {self._options.timeout:g} s",
                remedy="Look at the output of those nodes. --rdzv-conf timeout=SECONDS waits longer.",
            )
        logger.info("waiting: %s (%.0f s left)", facts, deadline - now)
        return now + _REPORT_EVERY_S

    def _open_control_store(self) -> None:
        """Serve it on node rank 0, reach it from the others, and make sure that it is this job's."""
        options, run = self._options, self._request.run_id
        hello = json.dumps({"run_id": run, "nnodes": self._nodes, "host": self._me.host, "pid": self._me.pid})
        if self._rank == 0:
            ports = PortRange(self._endpoint.port, self._endpoint.port)
            what = f"node rank 0 of run {run!r}"
            if not is_own_address(self._endpoint.host):
                logger.warning(
                    "this is node rank 0, but %s is not an address of this machine (%s)", self._endpoint, self._me.host
                )
            store = serve(self._endpoint.host, ports, timeout=options.read_timeout, what=what)
            store.set(_HELLO, hello)
        else:
            store, _ = connect(
                self._endpoint, join_timeout=options.timeout, timeout=options.read_timeout, who="node rank 0"
            )
            self._compare(store)
        self._control = store
        prefixed = PrefixStore(self._prefix, store)
        self._record = JobRecord(prefixed)
        self._rounds = Rounds(prefixed)

    def _compare(self, store: TCPStore) -> None:
        try:
            hello = json.loads(store.get(_HELLO))
        except DistError as error:
            raise errors.EndpointUnreachable(
                f"{self._endpoint} is a torch TCPStore, but not that of a 'static' node rank 0: {error}",
                remedy="Start every node with rdzv-run and --rdzv-backend=static, or choose another port.",
            ) from error
        host = f"node rank 0 on {hello['host']} (pid {hello['pid']})"
        if hello["run_id"] != self._request.run_id:
            raise errors.RunIdMismatch(
                f"{self._endpoint} serves run {hello['run_id']!r} ({host}), not {self._request.run_id!r}",
                remedy="Give all nodes of a job the same --rdzv-id, and each job a port of its own.",
            )
        if hello["nnodes"] != self._nodes:
            raise errors.SettingsDiffer(
                f"this node was started with --nnodes={self._nodes}, {host} with --nnodes={hello['nnodes']}",
                remedy="Start all nodes with the same --nnodes.",
            )

    def _master_address(self) -> str:
        if self._request.local_addr:
            return self._request.local_addr
        return "127.0.0.1" if self._endpoint.host == "localhost" else self._endpoint.host

    def _control_(self) -> TCPStore:
        assert self._control is not None, "used before the first round"
        return self._control

    def _rounds_(self) -> Rounds:
        assert self._rounds is not None, "used before the first round"
        return self._rounds

    def _watch_key(self, key: str, on_value: Callable[[bytes], None]) -> Watch:
        store = self._control_()
        return Watch(store.host, store.port, f"{self._prefix}/{key}", on_value, self._on_lost)

    def _on_over(self, by: bytes) -> None:
        logger.info("%s has asked for a new round: this node's workers restart too", by.decode())
        self._restart = True

    def _on_end(self, value: bytes) -> None:
        outcome = parse_outcome(value)
        if outcome.end != "done":
            self._problem = as_torch(ended_error(outcome, self._request))

    def _on_lost(self, error: Exception) -> None:
        self._problem = self._problem or as_torch(self._lost(error))

    def _lost(self, error: BaseException) -> errors.EndpointLost:
        return errors.EndpointLost(
            f"lost node rank 0 of run {self._request.run_id!r} at {self._endpoint}: {error}",
            remedy="Its agent has ended or its machine cannot be reached. Its own output says why.",
        )

    def _stop_round_watch(self) -> None:
        if self._watch is not None:
            self._watch.stop()

    def _stop_watches(self) -> None:
        self._stop_round_watch()
        if self._end_watch is not None:
            self._end_watch.stop()
