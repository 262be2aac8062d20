"""torch's dynamic rendezvous on any state backend, with a fresh worker store every round and ends that are announced.

torch (2.13) creates the workers' store once and hands it out again after every restart, old keys included.
``FreshDynamicHandler`` makes it forget the store before each round, so that rank 0 serves a new one, published under
the round's prefix, and processes that still use the old one are cut off. Everything that it touches of torch's
internals is in this file, and tests/launcher/test_two_nodes.py fails if it stops working.
"""

from __future__ import annotations

import base64
import json
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from torch.distributed import DistError, PrefixStore, Store, TCPStore
from torch.distributed.elastic.rendezvous import api
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from rdzv_plugins import errors
from rdzv_plugins.dynamic.options import SETTINGS, DynamicSettings, run_prefix
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.interfaces import (
    Failure,
    Outcome,
    RendezvousBackend,
    RendezvousHandler,
    Request,
    RoundEvent,
    TellEvent,
    Token,
)
from rdzv_plugins.kvstore.sockets.reach import default_address, wait_reachable
from rdzv_plugins.kvstore.tcpstore.plain_client import KeyWatch
from rdzv_plugins.kvstore.tcpstore.torch_store import connect, serve
from rdzv_plugins.options import PortRange
from rdzv_plugins.plain_text import printable
from rdzv_plugins.rounds.ends import LAST, JobRecord, drain_wait, ended_error, parse_outcome
from rdzv_plugins.rounds.settings_check import compare, refusal, signed, wanted
from rdzv_plugins.rounds.worker_stores import WorkerStores
from rdzv_plugins.runtime import OwnThread
from rdzv_plugins.timing import Reporting
from rdzv_plugins.torch_types import OfTorch, as_torch, first_line

T = TypeVar("T")

logger = logging.getLogger(__name__)

_RANDOM = random.Random()  # a generator of our own: the user may have seeded the other
_UNREADABLE = (AttributeError, EOFError, ImportError, IndexError)
"""The errors besides ``PickleError`` that torch lets through when the state is not one of its own."""
_SAMPLE_S, _PROBE_S = 0.5, 3.0
_REFUSED_COUNT = "refused/count"
_ALL_THERE = (
    "As many nodes are there as this one was told of: one of them was started with another --nnodes, as a plain "
    "torchrun node, which does not say so, may be. Start all nodes with the same --nnodes."
)


def dynamic_handler(backend: RendezvousBackend, request: Request, settings: DynamicSettings) -> FreshDynamicHandler:
    """A handler for this node. Blocks until the control store is reached, at most the join time-out."""
    store: Store | None = getattr(backend, "store", None)  # see SharesStore: each of them may be missing
    hosts = bool(getattr(backend, "hosts_store", False))
    address: str | None = getattr(backend, "local_addr", None)
    most = settings.cas_backoff_max_seconds  # torch does the same from 2.15 on
    state = TorchStateBackend(backend, (lambda: time.sleep(_RANDOM.uniform(0, most))) if most else lambda: None)
    backend = state
    if store is None:
        backend, store, hosts, address = share_store(state, request, settings)
    handler: FreshDynamicHandler = FreshDynamicHandler.from_backend(
        run_id=request.run_id,
        store=store,
        backend=backend,
        min_nodes=request.min_nodes,
        max_nodes=request.max_nodes,
        local_addr=request.local_addr or address or default_address(),
        timeout=RendezvousTimeout(
            join=timedelta(seconds=settings.join_seconds),
            last_call=timedelta(seconds=settings.last_call_timeout),
            close=timedelta(seconds=settings.close_timeout),
            heartbeat=timedelta(seconds=settings.heartbeat_timeout),
        ),
        keep_alive_interval=settings.keep_alive_interval,
        keep_alive_max_attempt=settings.keep_alive_max_attempt,
    )
    handler.prepare(request, settings, state, store, hosts)
    return handler


class FreshDynamicHandler(DynamicRendezvousHandler, RendezvousHandler):  # type: ignore[misc]
    """torch's handler with a fresh worker store every round; made by ``dynamic_handler``. Thread-safe like torch's."""

    def prepare(
        self, request: Request, settings: DynamicSettings, state: TorchStateBackend, store: Store, hosts_store: bool
    ) -> None:
        """Take what torch's class method cannot pass on. Called once."""
        self._request = request
        self._state_backend = state
        self._options = settings
        self._hosts_store = hosts_store
        shared_by = request.run_id if request.max_nodes > 1 else ""
        self._workers = WorkerStores(settings, timeout=settings.read_timeout, shared_by=shared_by)
        self._prefix = run_prefix(request.run_id)
        self._shared = PrefixStore(self._prefix, store)
        self._record_ = JobRecord(OfTorch(self._shared))
        # a store that outlives the nodes, as a file does, may hold keys of nodes that are gone
        self._control = store if isinstance(store, TCPStore) else None
        self._agreed = self._control is None
        self._watch: KeyWatch | None = None
        if request.max_nodes > 1 and self._control is not None:
            self._watch = KeyWatch(store.host, store.port, f"{self._prefix}/end", self._on_end, self._on_lost)
        # torch's opt-out gets its fresh store by other means
        if settings.is_native and not self.use_agent_store:
            logger.warning(
                "store=parallel is not used: TORCH_DISABLE_SHARE_RDZV_TCP_STORE lets the first worker serve its own"
            )
        self._problem: Exception | None = None
        self._members: list[Any] = []
        self._seen = 0  # participants, as long as this node was one
        self._left = False
        self._tell: TellEvent = lambda _: None

    def next_rendezvous(self) -> api.RendezvousInfo:
        self.raise_if_ended()
        self._shared_tcp_store_server = None  # the last round's
        self._workers.close()  # if it was ours
        self._bootstrap_store_info = None
        self._agree()
        refusals = RefusedNodes(self._control if self._request.max_nodes > 1 else None, self._prefix)
        with Waiting(self._facts_of_a_member) as waiting, refusals:
            try:
                info = super().next_rendezvous()  # type: ignore[safe-super]
            except _UNREADABLE as error:
                raise self._explain(api.RendezvousStateError(f"its state cannot be read: {error}")) from error
            except (api.RendezvousError, DistError) as error:
                facts = waiting.last or self._facts()
                raise self._explain(error, f"{facts}; {refusals.last}" if refusals.last else facts) from error
        ranks = self._state_holder.state.participants
        self._members = sorted(ranks, key=ranks.__getitem__)
        # torch counts from 0
        self._tell(RoundEvent("complete", self._state_holder.state.round + 1, info.rank, info.world_size))
        return info

    def _agree(self) -> None:
        """Compare this node's settings with those of the job's first node. Raises ``SettingsDiffer``.

        Nodes of plain torchrun neither write nor read them: torch's state holds only what each node makes of its own.
        """
        if self._agreed:
            return
        try:
            mine = signed({"nnodes": wanted(self._request.min_nodes, self._request.max_nodes)}, socket.gethostname())
            text = json.dumps(mine)
            held = self._shared.compare_set(SETTINGS, "", text)
            if held != text.encode():
                try:
                    compare(mine, held, self._request.endpoint)
                except errors.SettingsDiffer as error:
                    self._shared.set(f"refused/{self._shared.add(_REFUSED_COUNT, 1)}", refusal(mine, error))
                    raise as_torch(error) from None
        except DistError as error:
            raise self._problem or as_torch(self._lost(error)) from error
        self._agreed = True

    def num_nodes_waiting(self) -> int:
        self.raise_if_ended()
        try:
            return int(super().num_nodes_waiting())  # type: ignore[safe-super]
        except api.RendezvousError as error:
            raise self._explain(error) from error

    def note_failure(self, failure: Failure) -> None:
        self._record_.note_failure(self._state_holder.state.round, failure)

    def first_failure(self) -> Failure | None:
        return self._record_.first_failure(self._state_holder.state.round)

    def count_restart(self, note: str) -> Sequence[str]:
        return self._record_.count_restart(self._state_holder.state.round, note)

    def tell_events(self, tell: TellEvent) -> None:
        self._tell = tell

    def waits_for(self) -> str:
        return self._facts_of_a_member()

    # must_rejoin stays False as in torch: a node that is done does not run again

    def raise_if_ended(self) -> None:
        if self._problem is not None:
            raise self._problem

    def working_peers(self) -> Sequence[str]:
        """The other nodes that still work, according to torch's own heartbeats and the exit barrier of the round."""
        try:
            with self._heartbeat_lock:
                self._state_holder.sync()
            if self._get_store().check([LAST]):
                return ()
            alive = self._state_holder.state.participants
            return [f"{node.addr} (pid {node.pid})" for node in self._others() if node in alive]
        except (api.RendezvousError, DistError) as error:
            logger.debug("could not ask for the other nodes: %s", error)
            return ()

    # lost_peers names none: heartbeats are too slow for a failure that waits for the answer

    def stay(self) -> None:
        """Rank 0 serves the workers' store, and one node the control store."""
        if len(self._members) < 2 or not (self._hosts_store or self._members[0] == self._this_node):
            return
        try:
            drain_wait(self._is_needed, self.working_peers)
        except (
            DistError,
            errors.StoreError,
            errors.EndpointLost,
        ) as error:  # it went with the agent that served it, which is done
            logger.debug("could not wait for the other nodes: %s", error)

    def leave(self, outcome: Outcome) -> None:
        """Tell the others. A ``lost`` node says so only if it takes the control store with it."""
        self._left = True
        if self._watch is not None:
            self._watch.stop()
        try:
            if outcome.end != "lost" or self._hosts_store:
                self._record_.end(outcome)
            if outcome.end == "lost":
                self._stop_heartbeats()
            else:
                super().shutdown()  # type: ignore[safe-super]
            self._record_.mark_left(str(self._this_node))
            if self._hosts_store:
                self._record_.wait_left(map(str, self._others()), self._options.linger)
        except (DistError, errors.StoreError) as error:
            logger.debug("could not tell the other nodes how this one ended: %s", error)

    def shutdown(self) -> bool:
        if self._watch is not None:
            self._watch.stop()
        self._shared_tcp_store_server = None
        self._workers.shutdown()
        return True if self._left else bool(super().shutdown())  # type: ignore[safe-super]

    def _create_tcp_store_server(self, master_addr: str, master_port: int) -> Any:  # torch uses only its .port
        try:
            return self._workers.open(master_addr, f"the workers' store of node {self._this_node.addr}")
        except errors.RendezvousFailed as error:
            raise as_torch(error) from None

    def _on_end(self, value: bytes) -> None:
        outcome = parse_outcome(value)
        if outcome.end == "done":
            return  # torch's exit barrier waits for the nodes that still work
        self._problem = as_torch(ended_error(outcome, self._request))

    def _on_lost(self, error: Exception) -> None:
        self._problem = self._problem or as_torch(self._lost(error))
        self._state_backend.give_up(self._problem)  # a waiting node asks for the state only, which may be elsewhere

    def _lost(self, error: BaseException) -> errors.EndpointLost:
        where = self._request.endpoint or "the shared control store"
        return errors.EndpointLost(
            f"lost the rendezvous of run {self._request.run_id!r} at {where}: {first_line(error)}",
            remedy="The agent that hosts it has ended, or its machine cannot be reached. Its own output says why.",
        )

    def _others(self) -> list[Any]:
        """The other nodes of this node's last round."""
        return [node for node in self._members if node != self._this_node]

    def _is_needed(self) -> bool:
        self.raise_if_ended()
        return not self._record_.has_left(*map(str, self._others()))

    def _facts(self) -> str:
        """The nodes that are present, as far as this one knows."""
        state, request = self._state_holder.state, self._request
        there = ", ".join(sorted(f"{node.addr} (pid {node.pid})" for node in state.participants)) or "nobody"
        many = wanted(request.min_nodes, request.max_nodes)
        late = f", {len(state.wait_list)} waiting for the next round" if state.wait_list else ""
        return (
            f"{len(state.participants)} of {many} nodes are in round {state.round} at {request.endpoint} "
            f"({there}){late}"
        )

    def _facts_of_a_member(self) -> str:
        """What this node sees as a member; nothing if it is none: not yet, or no longer because its time is up."""
        state = self._state_holder.state
        there = (state.participants, state.wait_list, state.redundancy_list)
        if not any(self._this_node in nodes for nodes in there):
            return ""
        self._seen = len(state.participants)
        return self._facts()

    def _explain(self, error: Exception, facts: str = "") -> Exception:
        """torch's error, plus what it leaves out: who is present, who ended the job, which key nobody wrote."""
        if self._problem is not None:  # as reported by the node that it happened to
            return self._problem
        if isinstance(error, errors.RdzvError):
            return error
        ours = self._in_our_words(error, facts)
        return as_torch(ours) if ours is not None else error

    def _in_our_words(self, error: Exception, facts: str) -> errors.RendezvousFailed | None:
        run = self._request.run_id
        if isinstance(error, api.RendezvousTimeoutError):
            return errors.RendezvousTimeout(
                f"run {run!r}: {facts}, after {self._options.join_seconds:g} s",
                remedy=_ALL_THERE
                if self._seen >= self._request.max_nodes
                else "Start the missing nodes with the same --rdzv-endpoint, --rdzv-id and --nnodes.",
            )
        if isinstance(error, api.RendezvousClosedError):
            outcome = self._record_.ended()
            return ended_error(outcome or Outcome("done", "it was closed by a node"), self._request)
        if isinstance(error, api.RendezvousStateError):
            return errors.RendezvousFailed(
                f"run {run!r}: {first_line(error)}",
                remedy="Another program, or another version of torch, has written it. Use another --rdzv-id.",
            )
        if isinstance(error, api.RendezvousConnectionError):
            return self._lost(error.__cause__ or error)
        if isinstance(error, DistError):
            return errors.RendezvousFailed(
                f"run {run!r}: rank 0 published no worker store within {self._options.read_timeout:g} s "
                f"({first_line(error)}); {facts}",
                remedy="If rank 0 is a plain torchrun node: it publishes only once, so a mixed job cannot be "
                "restarted. Start every node with rdzv-run.",
            )
        return None


# What a node of a blocked rendezvous tells: every ten seconds what it waits for, and at once who was refused.


class Waiting:
    """A context manager around something that blocks; ``facts`` is called on a thread of its own.

    ``last`` keeps the newest facts that are not empty: torch tidies up its state before it raises a time-out.
    """

    def __init__(self, facts: Callable[[], str]) -> None:
        self._facts = facts
        self.last = facts()
        self._over = threading.Event()
        self._thread = OwnThread(target=self._run, name="rdzv-waiting")

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        start, reporting = time.monotonic(), Reporting()
        while not self._over.wait(_SAMPLE_S):
            self.last = self._facts() or self.last
            if reporting.is_due():
                known = self.last or "the state of the rendezvous has not been reached yet"
                logger.info("waiting: %s (%.0f s)", known, time.monotonic() - start)


class RefusedNodes:
    """A context manager that logs every refusal meanwhile. Without ``control`` it hears of none.

    ``last`` is the newest sentence. Once the store is lost nothing more is heard; the loss is reported elsewhere.
    """

    def __init__(self, control: TCPStore | None, prefix: str) -> None:
        self._control, self._prefix = control, prefix
        self._lock = threading.Lock()
        self._stopped = False
        self._watch: KeyWatch | None = None
        self._number = 0
        self.last = ""

    def __enter__(self) -> RefusedNodes:
        if self._control is not None:
            try:
                self._number = PrefixStore(self._prefix, self._control).add(_REFUSED_COUNT, 0)
                self._next()
            except (DistError, OSError) as error:
                logger.debug("nodes that are refused are not heard of: %s", error)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stopped = True
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    def _next(self) -> None:
        with self._lock:
            if self._control is None or self._stopped:
                return
            self._number += 1
            key = f"{self._prefix}/refused/{self._number}"
            self._watch = KeyWatch(self._control.host, self._control.port, key, self._told, lambda _: None)

    def _told(self, text: bytes) -> None:
        """Log that a node was refused, and watch for the next. Called on the watch's thread."""
        self.last = printable(text.decode(errors="backslashreplace"))
        logger.warning("%s", self.last)
        try:
            self._next()
        except OSError as error:
            logger.debug("nodes that are refused are not heard of any more: %s", error)


# The state, as torch needs it, and the control store, whose address travels beside it where a backend has none.


class TorchStateBackend:
    """Passes everything on to ``inner``, a plug-in's, and is equally thread-safe.

    Our own errors, and those of files and sockets, become torch's rendezvous errors; others are faults of the plug-in.
    torch keeps a node's place from a thread of its own, which goes on after torch's errors and ends for good with
    others: then the other nodes would count this one as lost even though the service has come back.
    """

    def __init__(self, inner: RendezvousBackend, back_off: Callable[[], object] = lambda: None) -> None:
        """``back_off`` is called after each write that another node has forestalled."""
        self._inner, self._back_off = inner, back_off
        self._lost: Exception | None = None

    @property
    def name(self) -> str:
        return self._inner.name

    def get_state(self) -> tuple[bytes, Token] | None:
        return self._asked("get_state", self._inner.get_state)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        found = self._asked("set_state", lambda: self._inner.set_state(state, token))
        if found is not None and not found[2]:
            self._back_off()
        return found

    def give_up(self, error: Exception) -> None:
        """Request nothing any more, though the state can be read: ``error`` says why the rendezvous is of no use."""
        self._lost = error

    def _asked(self, method: str, ask: Callable[[], T]) -> T:
        if self._lost is not None:
            raise self._lost
        try:
            return ask()
        except api.RendezvousError:
            raise
        except errors.PluginError as error:  # torch's thread ends with it unseen: the next one who asks is told, too
            self._lost = self._lost or error
            raise
        except errors.RendezvousFailed as error:
            raise as_torch(error) from error.__cause__
        except OSError as error:  # including a time-out and a broken connection
            raise api.RendezvousConnectionError(
                f"{method} of backend {self._inner.name!r} has failed: {type(error).__name__}: {error}"
            ) from error


class EnvelopeBackend:
    """Passes torch's state through ``inner``, wrapped; has the methods of torch's ``RendezvousBackend``."""

    def __init__(self, inner: RendezvousBackend, store: str) -> None:
        self._inner = inner
        self._store = store

    @property
    def name(self) -> str:
        return self._inner.name

    def get_state(self) -> tuple[bytes, Token] | None:
        held = self._inner.get_state()
        if held is None:
            return None
        state = _unwrap(held[0])[1]
        return (state, held[1]) if state else None

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        if token is None:  # torch means: if there is no state. Ours means: if the envelope is still empty
            held = self._inner.get_state()
            if held is not None:
                current = _unwrap(held[0])[1]
                if current:
                    return current, held[1], False
                token = held[1]
        written = self._inner.set_state(_wrap(self._store, state), token)
        if written is None:
            return None
        current = _unwrap(written[0])[1]
        return (current, written[1], written[2]) if current else None


Shared = tuple[EnvelopeBackend, TCPStore, bool, str]
"""A backend, the control store, whether this process serves that, and this node's address."""


def share_store(inner: RendezvousBackend, request: Request, settings: DynamicSettings) -> Shared:
    """Find or serve the control store that goes with ``inner``. Raises ``EndpointUnreachable``."""
    held = inner.get_state()
    if held is None:
        return _become_host(inner, request, settings, None)
    where, state = _unwrap(held[0])
    try:
        wait_reachable(parse_endpoint(where, None), _PROBE_S, "the control store")
    except errors.EndpointUnreachable as error:
        if state:
            raise as_torch(
                errors.EndpointLost(
                    f"run {request.run_id!r} has a state in {inner.name!r}, but its control store is gone: {error}",
                    remedy="If no node of that run is alive, start with another --rdzv-id.",
                )
            ) from None
        return _become_host(inner, request, settings, held[1])
    return _join(inner, where, settings)


def _become_host(inner: RendezvousBackend, request: Request, settings: DynamicSettings, token: Token | None) -> Shared:
    address = request.local_addr or ("127.0.0.1" if request.max_nodes == 1 else default_address())
    store = serve(address, PortRange(), timeout=settings.read_timeout, what="the control store")
    mine = str(Endpoint(address, store.port))
    written = inner.set_state(_wrap(mine, b""), token)
    where = _unwrap(written[0])[0] if written else mine
    if where == mine:
        logger.debug("serving the control store of run %s at %s", request.run_id, mine)
        return EnvelopeBackend(inner, mine), store, True, address
    return _join(inner, where, settings)  # another node was first: drop ours


def _join(inner: RendezvousBackend, where: str, settings: DynamicSettings) -> Shared:
    store, address = connect(
        parse_endpoint(where, None),
        join_timeout=settings.join_seconds,
        timeout=settings.read_timeout,
        who="the control store",
    )
    return EnvelopeBackend(inner, where), store, False, address


def _wrap(store: str, state: bytes) -> bytes:
    return json.dumps({"store": store, "state": base64.b64encode(state).decode()}).encode()


def _unwrap(envelope: bytes) -> tuple[str, bytes]:
    try:
        data: dict[str, Any] = json.loads(envelope)
        return str(data["store"]), base64.b64decode(data["state"], validate=True)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise as_torch(
            errors.RendezvousFailed(
                f"the stored state of the run is corrupt, or was not written by rdzv-plugins: {envelope[:60]!r}",
                remedy="Use another --rdzv-id, or remove what another program has written there.",
            )
        ) from None
