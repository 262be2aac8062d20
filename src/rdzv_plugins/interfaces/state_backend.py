"""The easy way to a backend of your own: one state blob with compare-and-swap."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

Token: TypeAlias = Any
"""Opaque fencing token: the version of the state that a write replaces."""


@runtime_checkable
class RendezvousBackend(Protocol):
    """One state blob with compare-and-swap: the easy way to a backend of your own.

    The framework runs torch's dynamic (min:max) rendezvous on it. Optional attributes: ``store``, a
    ``torch.distributed.Store`` shared by all nodes (without it the first node hosts one and its
    address travels beside the state); ``hosts_store`` (bool), true on the node in whose process that
    store is served; ``local_addr``, the address under which peers reach this node.

    Called by one thread at a time, not always the same: torch keeps this node's place from a separate thread. When the
    state cannot be read or written, raise ``EndpointUnreachable`` or ``EndpointLost`` of ``rdzv_plugins.errors``, or
    let an ``OSError`` through: torch's keep-alive tries again, a rendezvous ends with it. Never return None for a state
    that could not be read: to torch that means a job that has not begun.
    """

    @property
    def name(self) -> str:
        """The name of the backend."""
        ...

    def get_state(self) -> tuple[bytes, Token] | None:
        """The state and its token, or None when nobody has written one."""
        ...

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write ``state`` if the current one is the one that ``token`` belongs to (None: if there is none).

        Returns the state now held, its token, and whether this call wrote it.
        """
        ...
