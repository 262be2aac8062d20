"""What a backend is made of, and what is passed to it. Nothing here imports torch.

``RendezvousHandler`` and ``RendezvousBackend`` have the same methods as the classes of those names in
``torch.distributed.elastic.rendezvous``: a torch handler is accepted as it is, and ours can be given
to torch's elastic agent as they are.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from rdzv_plugins.coordination import CoordinationBackend

Token: TypeAlias = Any
"""Opaque fencing token: the version of the state that a write replaces."""


class StoreAddress(Protocol):
    """Where the workers of a round find their store (torch: ``RendezvousStoreInfo``)."""

    @property
    def master_addr(self) -> str: ...
    @property
    def master_port(self) -> int: ...


class RendezvousInfo(Protocol):
    """The result of one round (torch: ``RendezvousInfo``).

    ``store`` is a ``torch.distributed.Store`` private to the round and to the agents; ``rank`` and
    ``world_size`` count nodes, not workers.
    """

    @property
    def store(self) -> Any: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def bootstrap_store_info(self) -> StoreAddress | None: ...


@runtime_checkable
class RendezvousHandler(Protocol):
    """Full control over a node's part in the rendezvous; one instance per agent.

    torch's agent calls it from its main thread only. Every method but ``next_rendezvous`` has to
    return at once. Errors raised should be subclasses of torch's ``RendezvousError`` where code
    outside this project may catch them.
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
        Raises a closed, connection, state or timeout error, which says who is missing.
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
    """One worker's end. ``exit_code`` is negative for a signal, as in ``subprocess``."""

    node_rank: int
    host: str
    global_rank: int
    local_rank: int
    pid: int
    exit_code: int
    stderr: tuple[str, ...] = ()
    """Its last lines, at most a few kilobytes."""

    @property
    def process_exit_code(self) -> int:
        """What a shell would report: the code itself, 128+n for signal n."""
        return 128 - self.exit_code if self.exit_code < 0 else self.exit_code


@dataclass(frozen=True)
class Outcome:
    """How this node's part in the job ended.

    ``done``: its workers succeeded. ``failed``: restarts are used up, the job is over for everybody.
    ``lost``: the node goes (a signal, an error of its own), the others may go on without it.
    """

    end: Literal["done", "failed", "lost"]
    reason: str = ""
    failure: Failure | None = None


class Node(Protocol):
    """A node as ``rdzv_assign_ranks`` sees it."""

    @property
    def node_id(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def nproc(self) -> int: ...


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


@runtime_checkable
class EnvironmentAware(Protocol):
    """Optional method of a handler whose workers need to know more than torch's agent tells them."""

    def worker_env(self) -> Mapping[str, str]:
        """Variables for each worker of the current round. Called before the workers are started."""
        ...


class Capability(str, enum.Enum):
    """What a backend promises. An undeclared capability is refused or warned about, never assumed."""

    ELASTIC = "elastic"
    """--nnodes=MIN:MAX: nodes may join and leave while the job runs."""
    NODE_RANK = "node_rank"
    """A given --node-rank decides the node's place."""
    TORCHRUN_PEERS = "torchrun_peers"
    """Nodes started by plain torchrun may be part of the same job."""
    NODE_REPLACEMENT = "node_replacement"
    """An agent that is started again takes its old place, and all restart in one round."""


@dataclass(frozen=True)
class Request:
    """One launch on one node, complete and frozen: nobody re-reads argv or the environment."""

    backend: str
    """The name asked for: it may be an alias, and is what the handler's ``get_backend`` returns."""
    run_id: str
    endpoint: str
    """As given; ``endpoints.parse_endpoint`` splits it. Empty when none is needed."""
    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    node_rank: int | None = None
    """The given rank of this node, None when not given."""
    local_addr: str | None = None
    """The given address of this node, None: to be learnt from the socket that reaches the endpoint."""
    role: str = "default"
    max_restarts: int = 0
    conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """--rdzv-conf as it was written."""
    options: Any = None
    """``conf`` parsed into the backend's options dataclass; None before the backend is known."""
    entrypoint: tuple[str, ...] = ()
    """The worker's command and arguments."""
    given: frozenset[str] = frozenset()
    """The fields that the user set: ``rdzv_resolve_request`` fills in only the others."""


Created: TypeAlias = RendezvousHandler | RendezvousBackend | CoordinationBackend


@dataclass(frozen=True)
class Backend:
    """What a plug-in's ``rdzv_register_backends`` hook returns: a name and how to make it.

    Making a ``Backend`` must be cheap: ``rdzv backends`` lists all of them without importing torch.
    """

    name: str
    summary: str
    """One line, for the list."""
    create: Callable[[Request], Created]
    """Makes the handler, the coordination backend or the state backend of this node. May import and block."""
    aliases: tuple[str, ...] = ()
    capabilities: frozenset[Capability] = frozenset()
    options: type | None = None
    """A dataclass whose fields are the accepted --rdzv-conf keys (see ``options.option``)."""
    validate: Callable[[Request], None] | None = None
    """Checks the request before anything starts; raises ``UsageError``."""
    install: str = ""
    """The command that installs what ``create`` imports, for the error message."""
