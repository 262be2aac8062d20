"""A plug-in's state backend as torch's dynamic rendezvous needs it: no answer from the service becomes torch's error.

torch keeps a node's place from a thread of its own, which goes on after torch's errors and ends for good with others:
then the other nodes would count this one as lost even though the service has come back.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import api

from rdzv_plugins.dynamic.options import DynamicSettings
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import EndpointLost, EndpointUnreachable, PluginError, RendezvousFailed
from rdzv_plugins.interfaces import RendezvousBackend, Request, Token
from rdzv_plugins.kvstore.sockets.reach import default_address, wait_reachable
from rdzv_plugins.kvstore.tcpstore.torch_store import connect, serve
from rdzv_plugins.options import PortRange
from rdzv_plugins.torch_types import as_torch

T = TypeVar("T")


class TorchStateBackend:
    """Passes everything on to ``inner``, and is equally thread-safe.

    Our own errors, and those of files and sockets, become torch's rendezvous errors; others are faults of the plug-in.
    """

    def __init__(self, inner: RendezvousBackend, back_off: Callable[[], object] = lambda: None) -> None:
        """``back_off`` is called after each write that another node has forestalled."""
        self._inner, self._back_off = inner, back_off
        self.lost: Exception | None = None
        """Why the rendezvous is of no use.

        Once this is set nothing is requested any more, though the state can be read.
        """

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

    def _asked(self, method: str, ask: Callable[[], T]) -> T:
        if self.lost is not None:
            raise self.lost
        try:
            return ask()
        except api.RendezvousError:
            raise
        except PluginError as error:  # torch's thread ends with it unseen: the next one who asks is told, too
            self.lost = self.lost or error
            raise
        except RendezvousFailed as error:
            raise as_torch(error) from error.__cause__
        except OSError as error:  # including a time-out and a broken connection
            raise api.RendezvousConnectionError(
                f"{method} of backend {self._inner.name!r} has failed: {type(error).__name__}: {error}"
            ) from error


logger = logging.getLogger(__name__)

_PROBE_S = 3.0


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
    except EndpointUnreachable as error:
        if state:
            raise as_torch(
                EndpointLost(
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
            RendezvousFailed(
                f"what is held as the state of the run is corrupt, or not of this project: {envelope[:60]!r}",
                remedy="Use another --rdzv-id, or remove what another program has written there.",
            )
        ) from None
