"""What a backend is made of, and what is passed to it. Nothing here imports torch.

``RendezvousHandler`` and ``RendezvousBackend`` have the same methods as the classes of those names in
``torch.distributed.elastic.rendezvous``: a torch handler is accepted as it is, and ours can be given
to torch's elastic agent as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from rdzv_plugins.capabilities import Capability as Capability
from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.run_status import RunStatus

Token: TypeAlias = Any
"""Opaque fencing token: the version of the state that a write replaces."""


class StoreAddress(Protocol):
    """Where the workers of a round find their store (torch: ``RendezvousStoreInfo``)."""

    @property
    def master_addr(self) -> str:
        """Host name or address, as the workers get it in MASTER_ADDR."""
        ...

    @property
    def master_port(self) -> int:
        """TCP port, as the workers get it in MASTER_PORT."""
        ...


class RendezvousInfo(Protocol):
    """The result of one round (torch: ``RendezvousInfo``).

    ``store`` is private to the round and to the agents; ``rank`` and ``world_size`` count nodes, not workers.
    ``round_info.RoundInfo`` is one that needs no torch.
    """

    @property
    def store(self) -> Any:
        """A ``store.Store``, or a ``torch.distributed.Store``: it is made one. As thread-safe as torch's own."""
        ...

    @property
    def rank(self) -> int:
        """The rank of this node, from 0."""
        ...

    @property
    def world_size(self) -> int:
        """The number of nodes of the round."""
        ...

    @property
    def bootstrap_store_info(self) -> StoreAddress | None:
        """Where the workers' store is; None leaves it to the first worker to serve one."""
        ...


@runtime_checkable
class RendezvousHandler(Protocol):
    """Full control over a node's part in the rendezvous; one instance per agent.

    torch's agent calls it from its main thread only. Every method but ``next_rendezvous`` has to
    return at once. It raises ``RendezvousFailed`` or a class below it, which become torch's errors of their kind
    where torch's agent calls; or torch's errors themselves.
    """

    def get_backend(self) -> str:
        """The name of the backend."""
        ...

    @property
    def use_agent_store(self) -> bool:
        """True when the workers are clients of a store that an agent hosts (the usual way)."""
        ...

    def next_rendezvous(self) -> RendezvousInfo:
        """Block until this node is part of a complete round.

        Each call gives the workers a store without any key of an earlier round.
        Raises ``RendezvousClosed``, ``EndpointUnreachable``, ``RendezvousTimeout`` or another ``RendezvousFailed``
        (or torch's error of that kind): it says who is missing.
        """
        ...

    def is_closed(self) -> bool:
        """True once the job has ended for everybody."""
        ...

    def set_closed(self) -> None:
        """End the job for everybody."""
        ...

    def num_nodes_waiting(self) -> int:
        """More than 0 when the agent should restart its workers and join a new round.

        Called every ``monitor_interval`` (0.1 s). May raise when the job has failed elsewhere.
        """
        ...

    def get_run_id(self) -> str:
        """The id that all nodes of the job share."""
        ...

    def shutdown(self) -> bool:
        """Let go of all resources. True on success."""
        ...


@runtime_checkable
class RendezvousBackend(Protocol):
    """One state blob with compare-and-swap: the easy way to a backend of your own.

    The framework runs torch's dynamic (min:max) rendezvous on it. Optional attributes: ``store``, a
    ``torch.distributed.Store`` shared by all nodes (without it the first node hosts one and its
    address travels beside the state); ``hosts_store`` (bool), true on the node in whose process that
    store is served; ``local_addr``, the address under which peers reach this node.

    Called by one thread at a time, not always the same one: torch keeps this node's place from a thread of its own.
    When the state cannot be read or written, raise ``EndpointUnreachable`` or ``EndpointLost`` of
    ``rdzv_plugins.errors``, or let an ``OSError`` through: torch's keep-alive tries again, a rendezvous ends with it.
    Never return None for a state that could not be read: to torch that is a job that has not begun.
    """

    @property
    def name(self) -> str:
        """The name of the backend."""
        ...

    def get_state(self) -> tuple[bytes, Token] | None:
        """The state and its token, or None when nobody has written one."""
        ...

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write ``state`` if the current one is that of ``token`` (None: if there is none).

        Returns the state now held, its token, and whether this call wrote it.
        """
        ...


@dataclass(frozen=True)
class Failure:
    """One worker's end. ``exit_code`` is negative for a signal, as in ``subprocess``. Any thread may have it."""

    node_rank: int
    """The rank, in the round that failed, of the node on which the worker ran; ``host`` is that node's name."""
    host: str
    global_rank: int
    local_rank: int
    pid: int
    exit_code: int
    stderr: tuple[str, ...] = ()
    """The last lines of its standard error, at most a few kilobytes."""

    @property
    def process_exit_code(self) -> int:
        """The exit code that a shell would report: the code itself, or 128+n for signal n."""
        return 128 - self.exit_code if self.exit_code < 0 else self.exit_code


@dataclass(frozen=True)
class Outcome:
    """How this node's part in the job ended. Any thread may have it.

    ``done``: its workers succeeded. ``failed``: restarts are used up, the job is over for everybody.
    ``lost``: the node goes (a signal, an error of its own), the others may go on without it.
    """

    end: Literal["done", "failed", "lost"]
    reason: str = ""
    """A sentence, for the others and for the log."""
    failure: Failure | None = None
    """The worker that failed first over all nodes, if one did."""


class Node(Protocol):
    """A node as ``rdzv_assign_ranks`` sees it."""

    @property
    def node_id(self) -> str:
        """Unique over all agents of the job; what the hook returns."""
        ...

    @property
    def host(self) -> str:
        """The node's host name, as the node reports it."""
        ...

    @property
    def address(self) -> str:
        """The address under which the node's peers reach it."""
        ...

    @property
    def nproc(self) -> int:
        """The number of the node's workers; 0 from plain torchrun, which does not say."""
        ...


@runtime_checkable
class JobAware(Protocol):
    """Optional methods of a handler: telling the other nodes why, and hearing it from them.

    ``note_failure`` may be called from any thread; the rest from the agent's main thread.
    """

    def note_failure(self, failure: Failure) -> None:
        """Record a worker's failure. The first one of a round, over all nodes, is kept."""
        ...

    def first_failure(self) -> Failure | None:
        """The first failure of the current round, from whichever node."""
        ...

    def must_rejoin(self) -> bool:
        """True when a node of this round restarts its workers and needs all others to do so too."""
        ...

    def raise_if_ended(self) -> None:
        """Raise the reason if the job has failed elsewhere or the rendezvous is lost. Sends nothing."""
        ...

    def leave(self, outcome: Outcome) -> None:
        """Tell the others how this node ends. Called once, before ``shutdown``."""
        ...


@runtime_checkable
class MembershipAware(Protocol):
    """Optional methods of a handler that knows which nodes live. For the agent's main thread."""

    def note_done(self) -> None:
        """This node's workers have all succeeded; it waits for those of the others."""
        ...

    def note_leaving(self, reason: str) -> None:
        """This node is about to stop its workers and leave: their peers will fail, and not by themselves."""
        ...

    def peer_lost(self) -> bool:
        """A worker has failed here: True if that is because the nodes of the round have changed. May wait."""
        ...


class Holding(Protocol):
    """Tells how long a node's round is sure to hold: an optional attribute of a handler, named ``holding``.

    Reading it sends nothing. Thread-safe.
    """

    @property
    def ttl(self) -> float:
        """Seconds without a sign of life after which the service counts a node as lost."""
        ...

    def until(self) -> float:
        """The time until which the round is sure to hold, as ``rdzv_plugins.clock.now`` counts; 0 when it is over.

        Infinite for a session that cannot say.
        """
        ...

    def ended(self) -> bool:
        """True once the session with which this node joined its round is known to have ended."""
        ...

    def sure(self) -> bool:
        """True if the session with which this node joined is known to live now, so nobody else acts in its place."""
        ...

    def confirm(self, timeout: float) -> bool:
        """Ask the service, for ``timeout`` seconds at most; True if it has answered as to a session that lives."""
        ...

    def wait_for_news(self, timeout: float) -> None:
        """Return when something may have changed, after ``timeout`` seconds at the latest."""
        ...

    def on_news(self, call: Callable[[], None] | None) -> None:
        """Call it with all news of a round, before anything else is done with it. It returns at once."""
        ...


@runtime_checkable
class PeerAware(Protocol):
    """Optional methods of a handler that knows which nodes still work. For the agent's main thread."""

    def working_peers(self) -> Sequence[str]:
        """The other nodes of the round that are known to live, and not to be done, by name. May take some seconds."""
        ...

    def lost_peers(self) -> Sequence[str]:
        """The other nodes of the round that are gone, each with what is known of its end. Called after a worker failed.

        May take some seconds. What a handler has told by ``peer_lost`` it need not tell again.
        """
        ...

    def stay(self) -> None:
        """This node is done and about to leave: wait while others work that need what it serves, however long.

        Called once, before ``leave``. A signal ends it. Raises the reason if the job fails elsewhere meanwhile.
        """
        ...


@runtime_checkable
class EnvironmentAware(Protocol):
    """Optional method of a handler whose workers need to know more than torch's agent tells them."""

    def worker_env(self) -> Mapping[str, str]:
        """Variables for each worker of the current round. Called before the workers are started."""
        ...


DEFAULT_RUN_ID = "none"
"""The run id of a job without --rdzv-id, as with torchrun."""


def _nobody_knows(endpoint: str) -> str:
    return ""


@dataclass(frozen=True)
class Request:
    """One launch on one node, complete and frozen: nobody re-reads argv or the environment."""

    backend: str
    """The name asked for: it may be an alias, and is what the handler's ``get_backend`` returns."""
    run_id: str
    """The id that all nodes of the job share: --rdzv-id."""
    endpoint: str
    """The endpoint as given; ``endpoints.parse_endpoint`` splits it. Empty when none is needed."""
    min_nodes: int
    """The MIN of --nnodes=MIN:MAX, at least 1; the same as ``max_nodes`` where one number was given."""
    max_nodes: int
    nproc_per_node: int
    """Workers of this node; 0 from plain torchrun, which does not say."""
    node_rank: int | None = None
    """The given rank of this node, None when not given."""
    local_addr: str | None = None
    """The given address of this node, None: to be learnt from the socket that reaches the endpoint."""
    role: str = "default"
    max_restarts: int = 0
    """How often a failure of a worker may restart all workers before the job has failed."""
    conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """--rdzv-conf as it was written."""
    options: Any = None
    """``conf`` parsed into the backend's options dataclass; None before the backend is known."""
    entrypoint: tuple[str, ...] = ()
    """The worker's command and arguments."""
    target: Any = field(default=None, repr=False)
    """What the backend's ``validate`` has returned: where its nodes meet, parsed. None before the backend is known."""
    standalone: bool = False
    """This node meets no other: --standalone, or a single node of the default backend without an endpoint."""
    idle: str = ""
    """Why there is nothing to do for this process, in words: it ends with 0 at once. Empty: it is an agent.

    For plug-ins of schedulers that start a command several times on a node.
    """
    given: frozenset[str] = frozenset()
    """The fields that the user set: ``rdzv_resolve_request`` fills in only the others."""
    whose: Callable[[str], str] = field(default=_nobody_knows, compare=False, repr=False)
    """Tells what listens at an endpoint that does not answer as expected, in words; empty if no other backend knows it.

    Each is asked by its ``Backend.recognise``, which takes two seconds at most. Any thread may call it.
    """

    @property
    def is_named(self) -> bool:
        """True if the run id was chosen, and is not the default, which any other job may have, too."""
        return self.run_id != DEFAULT_RUN_ID or "run_id" in self.given


Created: TypeAlias = RendezvousHandler | RendezvousBackend | CoordinationBackend


@dataclass(frozen=True)
class Backend:
    """What a plug-in's ``rdzv_register_backends`` hook returns: a name and how to make it.

    Making a ``Backend`` must be cheap: ``rdzv backends`` lists all of them without importing torch.
    """

    name: str
    """The name that --rdzv-backend selects; case, ``-`` and ``_`` do not matter."""
    summary: str
    """One line about the backend, for lists."""
    create: Callable[[Request], Created]
    """Makes the handler, the coordination backend or the state backend of this node. May import and block.

    Called once on each node, in the agent's main thread. ``RdzvError`` reaches the user as it is raised,
    ``ModuleNotFoundError`` as what to install; anything else is a fault of the plug-in.
    """
    aliases: tuple[str, ...] = ()
    """Other names for the backend."""
    capabilities: frozenset[Capability] = frozenset()
    """What the backend promises; the conformance suite tries each."""
    options: type | None = None
    """A frozen dataclass whose fields are the accepted --rdzv-conf keys (see ``options.option``); None: no keys."""
    validate: Callable[[Request], object] | None = None
    """Checks the request, its options parsed, before anything starts; raises ``UsageError``. Must not block.

    What it returns is the ``target`` of the request that the other functions get: an endpoint is parsed once.
    """
    meets_at: Literal["", "node", "service"] = ""
    """Where the backend's nodes meet, if that is the same for all jobs; empty if it is not.

    ``node``: at one of them, which the endpoint names, so that --master-addr may name it, too. ``service``: apart from
    them, where other jobs may meet as well: a launch without --rdzv-id is refused, and --master-addr, which says
    nothing of the endpoint then, is left alone.
    """
    install: str = ""
    """The command that installs what ``create`` imports, for the error message."""
    check: Callable[[], object] | None = None
    """Raises an ``RdzvError`` that says what is missing and what to do, where it cannot be used by this installation.

    For ``rdzv backends``, which calls it for each list, and for each launch: it is quick, imports no torch, and asks
    nobody.
    """
    preflight: Callable[[Request, ExitStack], str] | None = None
    """Looks whether this node could meet the others now, for ``rdzv-run --check``; returns what it found, a sentence.

    Gets the request that ``create`` would get, in its place. It asks for some seconds at most and leaves nothing:
    what it opens and others are to find taken, such as a port that this node would serve, it puts on the ``ExitStack``,
    which is closed once all is checked. Raises the ``RdzvError`` with which the launch would end. What may yet
    become right, such as a node that is not there yet, is a warning of a logger below ``rdzv_plugins``.
    """
    recognise: Callable[[Request, float], str] | None = None
    """Tells what listens at the request's endpoint, if it is this backend's: "the rendezvous of run 'a' by ...", or "".

    Asked for somebody who was given this endpoint and perhaps another backend: ``options`` is None, the endpoint may be
    of another form. Any thread may call it. It takes no longer than that many seconds, imports no torch, and changes
    nothing of what it finds. What it raises counts as "".
    """
    status: Callable[[Request, float], RunStatus] | None = None
    """Tells ``rdzv status`` what a run does, seen from outside; that many seconds for each step. Changes nothing.

    The request has its options. Raises an ``RdzvError`` that says why nothing is known. None: the framework reads the
    keys of a coordination backend that ``meets_at`` a service; of others nothing is known.
    """
