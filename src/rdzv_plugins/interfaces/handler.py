"""A node's part in the rendezvous under full control, and the result of a round."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


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
        """A ``store.Store``, or a ``torch.distributed.Store``, which is converted. As thread-safe as torch's own."""
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

    torch's agent calls it from its main thread only. Every method but ``next_rendezvous`` has to return at once. It
    raises ``RendezvousFailed`` or a subclass, which torch's agent sees as the corresponding error of torch; or torch's
    errors themselves.
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

        Each call gives the workers a store without any key of an earlier round. Raises ``RendezvousClosed``,
        ``EndpointUnreachable``, ``RendezvousTimeout`` or another ``RendezvousFailed`` (or torch's corresponding error),
        which says who is missing.
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
        """Release all resources. True on success."""
        ...
