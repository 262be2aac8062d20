"""A gRPC channel to one member of the cluster. On the loop's thread only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, TypeVar

from rdzv_plugins.backends.etcd.api import grpc, rpc
from rdzv_plugins.backends.etcd.diagnosis import Reason, diagnose
from rdzv_plugins.backends.etcd.refusals import reason_of, refusal, verdict
from rdzv_plugins.backends.etcd.security import Security
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AccessRefused
from rdzv_plugins.kvstore.reach import try_connect

T = TypeVar("T")

DIAL_S = 3.0
"""How long one member is given to accept a connection, and to answer the first question."""
_REQUIRE_LEADER = ("hasleader", "true")
"""A member that has lost the majority says so at once, also on streams, instead of leaving them silent."""


class Unusable(Exception):
    """A member cannot be used now."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


class Dropped(Exception):
    """The connection is not used any more; says why."""


class Connection:
    """Opened by ``open_connection``."""

    def __init__(self, endpoint: Endpoint, security: Security, local_addr: str, remote_addr: str) -> None:
        self.endpoint, self.local_addr, self.remote_addr = endpoint, local_addr, remote_addr
        self._security = security
        self.dropped = ""
        """Why it is not used any more."""
        self.cluster_id = 0
        self.metadata: tuple[tuple[str, str], ...] = (_REQUIRE_LEADER,)
        channel = _channel(endpoint, security, remote_addr)
        self._open: tuple[Any, Any, Any, Any] | None = (
            channel,
            rpc.KVStub(channel),
            rpc.LeaseStub(channel),
            rpc.WatchStub(channel),
        )

    def _held(self) -> tuple[Any, Any, Any, Any]:
        if self._open is None:
            raise Dropped(self.dropped)
        return self._open

    @property
    def kv(self) -> Any:
        """The stub of etcd's service KV; each of the stubs raises ``Dropped`` when the connection is."""
        return self._held()[1]

    @property
    def lease(self) -> Any:
        """That of Lease."""
        return self._held()[2]

    @property
    def watch(self) -> Any:
        """That of Watch."""
        return self._held()[3]

    async def check(self) -> None:
        """Ask the member who it is. Raises ``AioRpcError`` or ``Unusable``."""
        status = await rpc.MaintenanceStub(self._held()[0]).Status(rpc.StatusRequest(), timeout=DIAL_S)
        self.cluster_id = status.header.cluster_id
        if not status.leader:
            raise Unusable(
                Reason("no leader: too few members of the cluster live, or reach each other, for a majority")
            )

    async def log_in(self) -> None:
        """Get a token, if there is a user. Raises ``AioRpcError``."""
        if not self._security.user:
            return
        request = rpc.AuthenticateRequest(name=self._security.user, password=self._security.password)
        try:
            answer = await rpc.AuthStub(self._held()[0]).Authenticate(request, timeout=DIAL_S)
        except grpc.aio.AioRpcError as error:
            if "authentication is not enabled" in (error.details() or ""):
                return  # whoever may come without a password may come with one
            raise
        self.metadata = (_REQUIRE_LEADER, ("token", answer.token))

    async def drop(self, reason: str) -> None:
        """Use it no longer: whoever waits for an answer on it gets ``Dropped``."""
        if not self.dropped:
            channel, *_ = self._held()
            self.dropped = reason
            self._open = None  # the socket is closed once nobody holds the channel any more
            await channel.close()

    async def answer(self, waiting: Awaitable[T], timeout: float | None = None) -> T:
        """What ``waiting`` gives. Raises ``Dropped`` if this connection is dropped meanwhile, and ``TimeoutError``."""
        try:
            return await (waiting if timeout is None else asyncio.wait_for(waiting, timeout))
        except asyncio.TimeoutError:  # another class than TimeoutError before Python 3.11
            raise TimeoutError from None
        except (asyncio.CancelledError, grpc.aio.UsageError):
            if self.dropped:  # a closed channel cancels its calls, and refuses new ones
                raise Dropped(self.dropped) from None
            raise


async def open_connection(endpoint: Endpoint, security: Security, path: str, *, log_in: bool = True) -> Connection:
    """A connection to a member that answers, belongs to a cluster with a leader, and knows this node's user.

    Raises ``Unusable``. The machine's address on it is learnt with a socket of our own, which also tells apart
    the ways in which dialling can fail.
    """
    loop = asyncio.get_running_loop()
    plain, problem = await loop.run_in_executor(None, try_connect, endpoint, DIAL_S, None)
    if plain is None:
        raise Unusable(Reason(problem))
    with plain:
        connection = Connection(endpoint, security, plain.getsockname()[0], plain.getpeername()[0])
    with contextlib.ExitStack() as undo:
        undo.callback(lambda: loop.create_task(connection.drop("not used")))
        try:
            await connection.check()
            if log_in:
                await connection.log_in()
        except grpc.aio.AioRpcError as error:
            raise Unusable(await _reason(error, endpoint, security, path)) from None
        undo.pop_all()
    return connection


async def _reason(error: Any, endpoint: Endpoint, security: Security, path: str) -> Reason:
    if verdict(error) is None and error.code() != grpc.StatusCode.UNIMPLEMENTED:
        refused = refusal(error, "the login", path, security)
        return Reason(str(refused), refused.remedy, final=True, denied=isinstance(refused, AccessRefused))
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return Reason("it accepts connections, but does not answer")
    found = await asyncio.get_running_loop().run_in_executor(None, diagnose, endpoint, security, DIAL_S)
    return found or Reason(reason_of(error))


def _channel(endpoint: Endpoint, security: Security, address: str) -> Any:
    target = f"ipv6:[{address}]:{endpoint.port}" if ":" in address else f"ipv4:{address}:{endpoint.port}"
    options = [
        ("grpc.enable_http_proxy", 0),  # the cluster is not on the Internet
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own: one that hangs is not to be shared
        ("grpc.max_receive_message_length", -1),  # a list of thousands of nodes
        ("grpc.default_authority", str(endpoint)),
    ]
    if not security.tls:
        return grpc.aio.insecure_channel(target, options=options)
    options.append(("grpc.ssl_target_name_override", endpoint.host))
    key, chain = security.certificate
    return grpc.aio.secure_channel(
        target, grpc.ssl_channel_credentials(security.authorities, key, chain), options=options
    )
