"""The easy way to a backend of your own: one state blob with compare-and-swap."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

Token: TypeAlias = Any
"""Opaque fencing token: the version of the state that a write replaces."""


@runtime_checkable
class RendezvousBackend(Protocol):
    """One state blob with compare-and-swap: the easy way to a backend of your own.

    The framework runs torch's dynamic (min:max) rendezvous on it. ``SharesStore`` has what it may offer in addition.

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


class SharesStore(Protocol):
    """What a ``RendezvousBackend`` may offer in addition: a store that all nodes share.

    Each attribute is optional. If ``store`` is missing, or None, the first node hosts a store, and its address travels
    beside the state.
    """

    @property
    def store(self) -> Any:
        """A ``torch.distributed.Store``, on which the nodes agree on what belongs to the job; or None."""
        ...

    @property
    def hosts_store(self) -> bool:
        """True on the node in whose process ``store`` is served; False if it is missing."""
        ...

    @property
    def local_addr(self) -> str | None:
        """The address under which peers reach this node; it is found out if it is missing, or None."""
        ...
