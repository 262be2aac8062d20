"""What a backend is made of, and what it is given. Nothing here imports torch.

``RendezvousHandler`` and ``RendezvousBackend`` have the methods of the classes of those names in
``torch.distributed.elastic.rendezvous``: a torch handler is accepted as it is, and torch's
elastic agent accepts ours.

Plug-ins import all of it from ``rdzv_plugins``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from rdzv_plugins.handler import Failure as Failure
from rdzv_plugins.handler import Holding as Holding
from rdzv_plugins.handler import NodeCheck as NodeCheck
from rdzv_plugins.handler import Outcome as Outcome
from rdzv_plugins.handler import RendezvousHandler as RendezvousHandler
from rdzv_plugins.handler import RendezvousInfo as RendezvousInfo
from rdzv_plugins.handler import RoundEvent as RoundEvent
from rdzv_plugins.handler import RoundInfo as RoundInfo
from rdzv_plugins.handler import StoreAddress as StoreAddress
from rdzv_plugins.handler import StoreInfo as StoreInfo
from rdzv_plugins.handler import TellEvent as TellEvent
from rdzv_plugins.handler import TorchHandler as TorchHandler

if TYPE_CHECKING:
    from rdzv_plugins.coordination import CoordinationBackend

DEFAULT_RUN_ID = "none"
"""The run id of a job without --rdzv-id, as with torchrun."""


def _nobody_knows(endpoint: str) -> str:  # no lambda: a request goes to other processes
    return ""


@dataclass(frozen=True)
class Request:
    """One launch on one node, complete and frozen: argv and the environment are not read again."""

    backend: str
    """The requested name, which may be an alias."""
    run_id: str
    """The id that all nodes of the job share: --rdzv-id."""
    endpoint: str
    """The endpoint as given; ``parse_endpoint`` splits it. Empty if none is needed (``standalone``)."""
    min_nodes: int
    """The MIN of --nnodes=MIN:MAX, at least 1; equal to ``max_nodes`` if only one number was given."""
    max_nodes: int
    nproc_per_node: int
    """Workers of this node; 0 from plain torchrun, which does not say."""
    node_rank: int | None = None
    """The given rank of this node, None when not given."""
    rank_moves: bool = False
    """True if ``node_rank`` comes from a scheduler, not from the user: ranks by domain then take precedence."""
    domain: str = ""
    """This node's topology zone according to a scheduler: a name shared by nodes near each other; or ""."""
    local_addr: str | None = None
    """The given address of this node; None: that of the socket which reaches the endpoint."""
    role: str = "default"
    max_restarts: int = 0
    """How many times the workers are restarted after a failure before the job fails."""
    conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The keys and values of --rdzv-conf as the user wrote them."""
    options: Any = None
    """``conf`` parsed into the backend's options dataclass; None before the backend is known."""
    entrypoint: tuple[str, ...] = ()
    """The worker's command and arguments."""
    target: Any = field(default=None, repr=False)
    """The result of the backend's ``validate``: where its nodes meet, parsed. None before the backend is known."""
    preflight: tuple[str, ...] = ()
    """The names of the checks to run before each round (``rdzv_plugins.system.preflight``); may be empty."""
    standalone: bool = False
    """True for a job without other nodes: --standalone, or one node of the default backend without an endpoint."""
    idle: str = ""
    """Why this process has nothing to do and ends with 0 at once. Empty: it is an agent.

    For schedulers that start a command several times on a node.
    """
    given: frozenset[str] = frozenset()
    """The fields that the user set: ``rdzv_resolve_request`` fills in only the others."""
    whose: Callable[[str], str] = field(default=_nobody_knows, compare=False, repr=False)
    """Identifies what listens at an endpoint, as text; empty if no other backend recognises it.

    It asks the ``Backend.recognise`` of each, which takes two seconds at most. Any thread may call it.
    """

    @property
    def at_endpoint(self) -> str:
        """Where the nodes meet, as part of a message: `` at ENDPOINT``; empty if none was given."""
        return f" at {self.endpoint}" if self.endpoint else ""

    @property
    def is_named(self) -> bool:
        """True if the run id was chosen, not the default that other jobs share."""
        return self.run_id != DEFAULT_RUN_ID or "run_id" in self.given


class Capability(str, enum.Enum):
    """What a backend promises. An undeclared capability is refused or causes a warning; it is never assumed."""

    # docs/reference/capabilities.md shows the docstrings below

    ELASTIC = "elastic"
    """``--nnodes=MIN:MAX``: nodes may join and leave while the job runs.

    A round has MIN to MAX nodes. A node that joins later, or is lost, starts a new round; if fewer than MIN are left,
    they wait for a replacement.

    Undeclared:
        If MIN is less than MAX, the launcher warns on each node that it waits for all MAX nodes, and passes the backend
        a request in which MIN is MAX.
    """
    NODE_RANK = "node_rank"
    """``--node-rank`` sets the node's rank.

    The node with ``--node-rank=3`` is node 3 in each round of at least four nodes, with the global ranks of that
    place.

    Undeclared:
        The launcher warns that ``--node-rank`` is ignored: the backend assigns the ranks.
    """
    TORCHRUN_PEERS = "torchrun_peers"
    """Nodes started by plain torchrun may be part of the same job.

    That is torchrun with its own backend of the same name, on nodes where this project need not be installed. It has
    nothing to do with ``--rdzv-backend=rdzv-plugins.NAME``, by which plain torchrun uses any backend.

    Undeclared:
        Such a node does not join the job, and the launcher cannot see it. Start all nodes with ``rdzv-run``, or all
        with that name.
    """
    NODE_REPLACEMENT = "node_replacement"
    """A restarted agent gets its old rank back, and all nodes restart in one round.

    It is recognised by its ``--node-rank``, or by its machine if none was given, and gets the node rank of the previous
    round once the old agent is gone.

    Undeclared:
        A restarted agent counts as a new node, for which there must be room; it may get any rank.
    """
    SEVERAL_ENDPOINTS = "several_endpoints"
    """``--rdzv-endpoint=A,B,C``: the nodes meet at one of these, and fail over to another when it is lost.

    The next round has the same ranks, uses no restart, and is the only one: too few nodes wait. A node that connects to
    any endpoint finds the one that serves.

    Undeclared:
        A list is refused before anything starts, or names the members of one service that fails over by itself.
    """
    TOKEN = "token"
    """With ``RDZV_TOKEN`` or a ``token_file``, only nodes that know the token take part in the job.

    Nodes prove that they know it before they exchange anything else on a connection, and workers reach their store
    through their node's proxy. How a separate service, such as etcd, authenticates its users is its own matter.

    Undeclared:
        A job of several nodes with a token is refused; for a job of one node the launcher warns.
    """


class Node(Protocol):
    """A node as ``rdzv_assign_ranks`` sees it."""

    @property
    def node_id(self) -> str:
        """Unique over all agents of the job; what the hook returns."""

    @property
    def host(self) -> str:
        """The node's host name, as the node reports it."""

    @property
    def address(self) -> str:
        """The address under which the node's peers reach it."""

    @property
    def domain(self) -> str:
        """A name shared by nodes near each other, which keeps their ranks consecutive; empty if nothing is known."""

    @property
    def nproc(self) -> int:
        """The number of the node's workers; 0 from plain torchrun, which does not say."""


Token: TypeAlias = Any
"""Opaque fencing token: the version of the state that a write replaces."""


@runtime_checkable
class RendezvousBackend(Protocol):
    """One state blob with compare-and-swap: the easiest way to write a backend.

    The framework runs torch's dynamic (min:max) rendezvous on it. ``SharesStore`` has what it may offer in addition.

    Called by one thread at a time, not always the same: torch keeps this node's place from a separate thread. When the
    state cannot be read or written, raise ``EndpointUnreachable`` or ``EndpointLost`` of ``rdzv_plugins.errors``, or
    let an ``OSError`` through: torch's keep-alive tries again, a rendezvous ends with it. Never return None for a state
    that could not be read: to torch that means a job that has not begun.
    """

    @property
    def name(self) -> str:
        """The name of the backend."""

    def get_state(self) -> tuple[bytes, Token] | None:
        """The state and its token, or None when nobody has written one."""

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write ``state`` if the current one is the one that ``token`` belongs to (None: if there is none).

        Returns the state now held, its token, and whether this call wrote it.
        """


class SharesStore(Protocol):
    """An optional extension of a ``RendezvousBackend``: a store that all nodes share.

    Each attribute is optional. If ``store`` is missing, or None, the first node hosts a store, and its address travels
    beside the state.
    """

    @property
    def store(self) -> Any:
        """A ``torch.distributed.Store``, on which the nodes agree on what belongs to the job; or None."""

    @property
    def hosts_store(self) -> bool:
        """True on the node in whose process ``store`` is served; False if it is missing."""

    @property
    def local_addr(self) -> str | None:
        """The address under which peers reach this node; it is found out if it is missing, or None."""


Verdict = Literal["ok", "warning", "wrong", "skipped"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class ServiceCheck:
    """One finding about the service. Immutable."""

    name: str
    """What was checked, in a few words, unique for the service: ``database of 10.0.0.1:2379``."""
    text: str
    """What was found, as a sentence without the name."""
    verdict: Verdict = "ok"
    """``wrong``: jobs cannot start there, or will fail. ``warning``: they can, but it needs attention.

    ``skipped``: not checked, and the text says why.
    """
    remedy: str = ""
    """What to do about it, as a sentence, if it is wrong or a warning."""


@dataclass(frozen=True)
class NodeStatus:
    """A node of a run's newest round."""

    rank: int
    host: str
    pid: int
    workers: int | None = None
    """The number of the node's workers; None if it cannot be known."""
    address: str = ""
    there: bool = True
    """True if the node still takes part, as far as that is known."""
    domain: str = ""
    """The name that it shares with nodes near it; empty if nothing is known."""


@dataclass(frozen=True)
class RunStatus:
    """A run's newest round, who is in it, and what it is waiting for."""

    number: int = 0
    """The number of the newest round; 0 before the first."""
    state: Literal["none", "waiting", "complete", "over", "failed", "ended"] = "none"
    """``waiting``: nodes are still to come; ``over``: they are rejoining; ``failed``, ``ended``: no round follows."""
    reason: str = ""
    """Why it is in that state, as a sentence."""
    progress: str = ""
    """What is or was last being waited for, as a sentence."""
    members: int | None = None
    """How many nodes take part, including those that wait; None if it cannot be known."""
    leader: str = ""
    """The node that leads; empty if none does, or if it is not known."""
    nodes: tuple[NodeStatus, ...] = ()
    """The nodes of the round, by rank."""
    store: str = ""
    """Address and port of the round's workers' store; empty while there is none."""
    store_is_here: bool = False
    """True if a loopback address in ``store`` is known to be one of this machine."""
    store_kind: str = ""
    """The option ``store`` of the job; ``torch``: that store has no statistics. Empty: not known."""


Created: TypeAlias = "RendezvousHandler | TorchHandler | RendezvousBackend | CoordinationBackend"


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

    Called once on each node, in the agent's main thread. An ``RdzvError`` reaches the user unchanged, a
    ``ModuleNotFoundError`` as advice on what to install; anything else is a fault of the plug-in.
    """
    aliases: tuple[str, ...] = ()
    """Other names for the backend."""
    capabilities: frozenset[Capability] = frozenset()
    """What the backend promises; the conformance suite tries each."""
    options: type | None = None
    """A frozen dataclass whose fields are the accepted --rdzv-conf keys (see ``options.option``); None: no keys."""
    validate: Callable[[Request], object] | None = None
    """Checks the request, its options parsed, before anything starts; raises ``UsageError``. Must not block.

    Its result becomes the ``target`` of the request that the other functions get, so an endpoint is parsed once.
    """
    meets_at: Literal["", "node", "service"] = ""
    """Where the backend's nodes meet, if that is the same for all jobs; empty if it is not.

    ``node``: at one of them, which the endpoint names, so that --master-addr may name it, too. ``service``: apart from
    them, where other jobs may meet as well: a launch without --rdzv-id is refused, and --master-addr, which then says
    nothing about the endpoint, is ignored.
    """
    install: str = ""
    """The command that installs what ``create`` imports, for error messages."""
    imports: tuple[str, ...] = ()
    """The modules that ``create`` imports and that may not be installed: looked for, but not imported, where ``check``
    is called, so that ``rdzv backends`` and ``rdzv-run --check`` know that one is missing."""
    check: Callable[[], object] | None = None
    """Raises an ``RdzvError`` that says what is missing and what to do if this installation cannot use the backend.

    ``rdzv backends`` calls it for each list, and every launch calls it: it is quick, does not import torch, and makes
    no requests.
    """
    preflight: Callable[[Request, ExitStack], str] | None = None
    """Checks whether this node could meet the others now, for ``rdzv-run --check``; returns its finding as a sentence.

    Called instead of ``create``, with the same request. It takes a few seconds at most and leaves nothing behind: what
    it opens and others should find taken, such as a port that this node would serve, it puts on the ``ExitStack``,
    which is closed once everything is checked. Raises the ``RdzvError`` with which the launch would end. What may still
    become right, such as a node that is not there yet, is a warning of a logger below ``rdzv_plugins``.
    """
    recognise: Callable[[Request, float], str] | None = None
    """Tells what listens at the request's endpoint, if it is this backend's: "the rendezvous of run 'a' by ...", or "".

    Called for somebody who was given this endpoint and perhaps another backend: ``options`` is None, and the endpoint
    may have another form. Any thread may call it. It takes no longer than the given number of seconds, does not import
    torch, and changes nothing. An exception counts as "".
    """
    status: Callable[[Request, float], RunStatus] | None = None
    """Tells ``rdzv status`` what a run is doing; each step may take the given seconds. Changes nothing.

    The request has its options. Raises an ``RdzvError`` that says why nothing is known. None: the framework reads the
    keys of a coordination backend that ``meets_at`` a service; nothing is known about others.
    """
    health: Callable[[Request, float], Iterable[ServiceCheck]] | None = None
    """Tells ``rdzv doctor`` how the service is that answers at the endpoint: each member, its room, its way here.

    Gets the request that ``create`` would get, and how many seconds each step may take. Any thread may call it. Changes
    nothing of what it finds, and also tells what it can of a service that nodes cannot use now: ``preflight`` says that
    they cannot. Raises an ``RdzvError`` where nothing is known.
    """
