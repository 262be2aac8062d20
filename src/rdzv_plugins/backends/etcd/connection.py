"""A gRPC channel to one member of the cluster. On the loop's thread only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from rdzv_plugins.backends.etcd.api import grpc, rpc
from rdzv_plugins.backends.etcd.diagnosis import SILENT, Reason, diagnose
from rdzv_plugins.backends.etcd.refusals import is_about_users, reason_of
from rdzv_plugins.backends.etcd.security import Security
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.reach import try_connect

T = TypeVar("T")

DIAL_S = 3.0
"""How long one member is given to accept a connection, and to answer the first question."""
_LOGIN_S = 120.0
_UNARY = {
    "KV/Range": (rpc.RangeRequest, rpc.RangeResponse),
    "KV/Txn": (rpc.TxnRequest, rpc.TxnResponse),
    "Lease/LeaseGrant": (rpc.LeaseGrantRequest, rpc.LeaseGrantResponse),
    "Lease/LeaseRevoke": (rpc.LeaseRevokeRequest, rpc.LeaseRevokeResponse),
    "Lease/LeaseTimeToLive": (rpc.LeaseTimeToLiveRequest, rpc.LeaseTimeToLiveResponse),
    "Auth/Authenticate": (rpc.AuthenticateRequest, rpc.AuthenticateResponse),
    "Maintenance/Status": (rpc.StatusRequest, rpc.StatusResponse),
}
_STREAMS = {
    "Watch/Watch": (rpc.WatchRequest, rpc.WatchResponse),
    "Lease/LeaseKeepAlive": (rpc.LeaseKeepAliveRequest, rpc.LeaseKeepAliveResponse),
}
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
        self.opened = time.monotonic()
        self.dropped = ""
        """Why it is not used any more."""
        self.cluster_id = 0
        """0: not known."""
        self.metadata: tuple[tuple[str, str], ...] = (_REQUIRE_LEADER,)
        self._channel: Any = _channel(endpoint, security, remote_addr)
        self._methods: dict[str, Any] = {}
        self._waiting: set[asyncio.Task[Any]] = set()
        self._login: asyncio.Task[None] | None = None

    def unary(self, method: str, request: Any, timeout: float) -> Awaitable[Any]:
        """The answer of a method such as "KV/Txn". Raises ``AioRpcError``, and ``Dropped`` when the connection is."""
        return self._method(method, _UNARY[method])(request, timeout=timeout, metadata=self.metadata)  # type: ignore[no-any-return]

    def stream(self, method: str) -> Any:
        """A stream of requests and answers, "Watch/Watch" or "Lease/LeaseKeepAlive". Raises ``Dropped``."""
        return self._method(method, _STREAMS[method])(metadata=self.metadata)

    def _method(self, name: str, messages: tuple[Any, Any]) -> Any:
        """Made when it is needed: a connection that only asks who is there needs one of them."""
        if self.dropped:
            raise Dropped(self.dropped)
        if name not in self._methods:
            request, answer = messages
            make = self._channel.stream_stream if name in _STREAMS else self._channel.unary_unary
            self._methods[name] = make(f"/etcdserverpb.{name}", request.SerializeToString, answer.FromString)
        return self._methods[name]

    async def check(self) -> None:
        """Ask the member whether it is of use, and of which cluster. Raises ``AioRpcError``.

        That there is no leader it says to anybody, of which cluster it is from 3.5.28 on to some users only.
        """
        try:
            status = await self.unary("Maintenance/Status", rpc.StatusRequest(), DIAL_S)
            self.cluster_id = status.header.cluster_id
        except grpc.aio.AioRpcError as error:
            if not is_about_users(error):
                raise

    async def logged_in(self) -> None:
        """Returns once there is a token, if there is a user. Raises ``AioRpcError``.

        All who want one wait for the same login, also if somebody else has given up waiting: etcd needs a tenth of a
        second of a processor for each password, and thousands of nodes may start at once.
        """
        if not self._security.user:
            return
        if self._login is None or (self._login.done() and self._login.exception() is not None):
            self._login = asyncio.get_running_loop().create_task(self._log_in())
            self._login.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait({self._login})
        self._login.result()

    def forget_login(self) -> None:
        """The token is of no use any more."""
        if self._login is not None and self._login.done():
            self._login = None

    async def _log_in(self) -> None:
        request = rpc.AuthenticateRequest(name=self._security.user, password=self._security.password)
        try:
            answer = await self.unary("Auth/Authenticate", request, _LOGIN_S)
        except grpc.aio.AioRpcError as error:
            if "authentication is not enabled" in (error.details() or ""):
                return  # whoever may come without a password may come with one
            raise
        self.metadata = (_REQUIRE_LEADER, ("token", answer.token))

    async def drop(self, reason: str) -> None:
        """Use it no longer: whoever waits for an answer on it gets ``Dropped``."""
        if not self.dropped:
            self.dropped = reason
            for (
                task
            ) in self._waiting:  # closing a channel wakes who reads, but not who writes to a stream that is not open
                task.cancel()
            channel, self._channel, self._methods = self._channel, None, {}
            await channel.close()  # its socket goes once nobody holds it any more

    async def answer(self, waiting: Awaitable[T], timeout: float | None = None) -> T:
        """What ``waiting`` gives. Raises ``Dropped`` if this connection is dropped meanwhile, and ``TimeoutError``."""
        task = asyncio.current_task()
        assert task is not None, "on the loop"
        self._waiting.add(task)
        try:
            return await (waiting if timeout is None else asyncio.wait_for(waiting, timeout))
        except asyncio.TimeoutError:  # another class than TimeoutError before Python 3.11
            raise TimeoutError from None
        except (asyncio.CancelledError, grpc.aio.UsageError):
            if self.dropped:  # a closed channel cancels its calls, and refuses new ones
                raise Dropped(self.dropped) from None
            raise
        finally:
            self._waiting.discard(task)
            del task  # an error that this frame is part of is kept by the task: no ring, which would keep sockets


async def open_connection(endpoint: Endpoint, security: Security) -> Connection:
    """A connection to a member that answers, and belongs to a cluster with a leader. Nobody has logged in yet.

    Raises ``Unusable``. The machine's address on it is learnt with a socket of our own, which also tells apart
    the ways in which dialling can fail.
    """
    loop = asyncio.get_running_loop()
    local_addr, remote_addr, problem = await loop.run_in_executor(None, _dial, endpoint)
    if problem:
        raise Unusable(Reason(problem))
    connection = Connection(endpoint, security, local_addr, remote_addr)
    try:
        await connection.check()
    except grpc.aio.AioRpcError as error:
        await connection.drop("not used")
        raise Unusable(await _reason(error, endpoint, security)) from None
    except BaseException:
        await connection.drop("not used")
        raise
    return connection


def _dial(endpoint: Endpoint) -> tuple[str, str, str]:
    """(address here, address there, what went wrong)."""
    plain, problem = try_connect(endpoint, DIAL_S, None)
    if plain is None:
        return "", "", problem
    with plain:
        return plain.getsockname()[0], plain.getpeername()[0], ""


async def _reason(error: Any, endpoint: Endpoint, security: Security) -> Reason:
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return SILENT
    if (error.details() or "").startswith("etcdserver: "):  # it is etcd, and says itself what is wrong
        return Reason(reason_of(error))
    found = await asyncio.get_running_loop().run_in_executor(None, diagnose, endpoint, security, DIAL_S)
    return found or Reason(reason_of(error))


def _channel(endpoint: Endpoint, security: Security, address: str) -> Any:
    target = f"ipv6:[{address}]:{endpoint.port}" if ":" in address else f"ipv4:{address}:{endpoint.port}"
    options = [
        ("grpc.enable_http_proxy", 0),  # the cluster is not on the Internet
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own: one that hangs is not to be shared
        (
            "grpc.min_reconnect_backoff_ms",
            int(DIAL_S * 1000),
        ),  # for so long a member may keep gRPC in suspense, not 20 s
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
