"""A gRPC channel to one member of the cluster, and how it is reached. On the loop's thread only."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from rdzv_plugins.backends.etcd.api import grpc, rpc
from rdzv_plugins.backends.etcd.diagnosis import SILENT, diagnose
from rdzv_plugins.backends.etcd.refusals import is_about_users, is_wrong_password, reason_of
from rdzv_plugins.backends.etcd.security import EtcdSecurity
from rdzv_plugins.certificates import read_file
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kit.loop import here, in_thread, looked_at
from rdzv_plugins.kit.reasons import Reason, Unusable
from rdzv_plugins.kvstore.sockets.reach import resolve, try_connect
from rdzv_plugins.kvstore.tcpstore.listener import SAME_BACKEND

Whose = Callable[[str], str]
"""Tells what listens at an endpoint: see ``Request.whose``."""

DIAL_S = 3.0
"""How many seconds one member is given to accept a connection and to answer the first question."""
_LOGIN_S = 60.0
_LOGIN = "Auth/Authenticate"
_STREAMS = ("Watch/Watch", "Lease/LeaseKeepAlive")
_HUNG_UP = "it has hung up"
_REQUIRE_LEADER = ("hasleader", "true")
"""A member that has lost the majority says so at once, even on streams, instead of leaving them silent."""


def nobody_knows(endpoint: str) -> str:
    """A ``Whose`` for when nobody can be asked."""
    return ""


TROUBLE = (grpc.aio.AioRpcError, EOFError, TimeoutError)
"""What a request ends with when the member, or the way to it, is gone."""


def trouble(error: Exception) -> str:
    """Why there is no answer, in words."""
    if isinstance(error, grpc.aio.AioRpcError):
        return reason_of(error)
    return "it does not answer" if isinstance(error, TimeoutError) else str(error) or _HUNG_UP


class Connection:
    """A connection to the member at ``endpoint``, made by ``open_connection``; the addresses are of both its ends."""

    def __init__(
        self, endpoint: Endpoint, security: EtcdSecurity, channel: Any, local_addr: str, remote_addr: str
    ) -> None:
        self.endpoint, self.local_addr, self.remote_addr = endpoint, local_addr, remote_addr
        self._security = security
        self.cluster_id = 0
        """The id of the member's cluster; 0 if not known."""
        self._metadata: tuple[tuple[str, str], ...] = (_REQUIRE_LEADER,)
        self._channel = channel
        self._methods: dict[str, Any] = {}
        self._login: asyncio.Task[None] | None = None
        self._refused: tuple[tuple[str, str], Exception] | None = None

    async def unary(self, method: str, request: Any, timeout: float | None = None) -> Any:
        """The answer of a method such as "KV/Txn". Raises ``AioRpcError``, and ``EOFError`` after ``drop``.

        Whoever waits when the connection is dropped is cancelled.
        """
        metadata = (_REQUIRE_LEADER,) if method == _LOGIN else self._metadata  # an old token must not get in its way
        try:
            return await self._method(method)(request, timeout=timeout, metadata=metadata)
        except grpc.aio.UsageError:  # its channel is closed
            raise EOFError(_HUNG_UP) from None

    def stream(self, method: str) -> Any:
        """gRPC's call of a streaming method: "Watch/Watch" or "Lease/LeaseKeepAlive". Raises ``EOFError``."""
        return self._method(method)(metadata=self._metadata)

    def _method(self, name: str) -> Any:
        """The method, made when it is needed: a connection that only asks who is there needs just one."""
        if self._channel is None:
            raise EOFError(_HUNG_UP)
        if name not in self._methods:
            messages = name.partition("/")[2]  # they are called after it
            request, answer = getattr(rpc, f"{messages}Request"), getattr(rpc, f"{messages}Response")
            make = self._channel.stream_stream if name in _STREAMS else self._channel.unary_unary
            self._methods[name] = make(f"/etcdserverpb.{name}", request.SerializeToString, answer.FromString)
        return self._methods[name]

    async def check(self) -> None:
        """Ask the member whether it is of use, and which cluster it belongs to. Raises ``AioRpcError``.

        It tells anybody that there is no leader; from 3.5.28 on it tells only some users which cluster it belongs to.
        """
        try:
            status = await self.unary("Maintenance/Status", rpc.StatusRequest(), DIAL_S)
            self.cluster_id = status.header.cluster_id
        except grpc.aio.AioRpcError as error:
            if not is_about_users(error):
                raise

    async def logged_in(self, timeout: float) -> None:
        """Return once there is a token, if there is a user. Raises ``AioRpcError``, ``TimeoutError`` and ``EOFError``.

        All tasks that want one wait for the same login, even if one of them has given up waiting: each password costs
        etcd a tenth of a second of a processor, and thousands of nodes may start at once.
        """
        if not self._security.user:
            return
        if self._login is None or (self._login.done() and (self._login.cancelled() or self._login.exception())):
            self._login = asyncio.get_running_loop().create_task(self._log_in())
            self._login.add_done_callback(looked_at)
        login = self._login
        done, _ = await asyncio.wait({login}, timeout=max(0.0, timeout))
        if not done:
            raise TimeoutError
        login.result()

    @property
    def token(self) -> str:
        """The token of the user who has logged in; empty if none has, or needs to."""
        return dict(self._metadata).get("token", "")

    def forget_login(self, used: str) -> None:
        """The token ``used`` is of no use any more. A new one that somebody else has obtained meanwhile is kept."""
        if self._login is not None and self._login.done() and self.token == used:
            self._login = None

    async def _log_in(self) -> None:
        login = await in_thread(self._security.login)
        if self._refused is not None and self._refused[0] == login:
            raise self._refused[1]  # asking again would cost etcd the same once more
        request = rpc.AuthenticateRequest(name=login[0], password=login[1])
        try:
            answer = await self.unary(_LOGIN, request, _LOGIN_S)
        except grpc.aio.AioRpcError as error:
            if "authentication is not enabled" in (error.details() or ""):
                return  # those who may come without a password may come with one
            if is_wrong_password(error):
                self._refused = login, error
            raise
        self._metadata = (_REQUIRE_LEADER, ("token", answer.token))

    async def drop(self) -> None:
        """Stop using it. May be repeated."""
        if self._channel is not None:
            channel, self._channel, self._methods = self._channel, None, {}
            await channel.close()  # its socket goes once nothing holds it any more


async def open_connection(endpoint: Endpoint, security: EtcdSecurity, whose: Whose = nobody_knows) -> Connection:
    """A connection to a member that answers and belongs to a cluster with a leader. Nobody has logged in yet.

    ``whose`` is asked what listens there if no member answers. Raises ``Unusable``. The socket also tells this
    machine's address on the way there.
    """
    try:
        local_addr, remote_addr, problem = await asyncio.wait_for(in_thread(_dial, endpoint), 2 * DIAL_S)
    except asyncio.TimeoutError:
        raise Unusable(Reason("its name was not resolved in time")) from None
    if problem:
        raise Unusable(Reason(problem))
    connection = Connection(endpoint, security, _channel(endpoint, security, remote_addr), local_addr, remote_addr)
    try:
        await connection.check()
    except grpc.aio.AioRpcError as error:
        await connection.drop()
        raise Unusable(await _reason(error, endpoint, security, whose)) from None
    except BaseException:
        await connection.drop()
        raise
    return connection


def _dial(endpoint: Endpoint) -> tuple[str, str, str]:
    """Return (address here, address there, what went wrong), for any address of the name: each may be a member."""
    try:
        addresses = list(dict.fromkeys(str(each[4][0]) for each in resolve(endpoint.host, endpoint.port)))
    except socket.gaierror:
        addresses = [endpoint.host]
    problem = ""
    for address in here().random.sample(addresses, len(addresses)):
        plain, problem = try_connect(Endpoint(address, endpoint.port), DIAL_S, None)
        if plain is not None:
            with plain:
                return plain.getsockname()[0], plain.getpeername()[0], ""
    return "", "", problem


async def _reason(error: Any, endpoint: Endpoint, security: EtcdSecurity, whose: Whose) -> Reason:
    silent = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    if not silent and (error.details() or "").startswith("etcdserver: "):  # it is etcd, and says itself what is wrong
        return Reason(reason_of(error))
    found = SILENT if silent else await in_thread(diagnose, endpoint, security, DIAL_S)
    if (found is None or found is SILENT) and (what := await in_thread(whose, str(endpoint))):
        return Reason(f"it is {what}; this node was given --rdzv-backend=etcd", SAME_BACKEND, True)
    return found or Reason(reason_of(error))


def _channel(endpoint: Endpoint, security: EtcdSecurity, address: str) -> Any:
    """A channel to the member's ``address``; its certificate has to match the host of ``endpoint``."""
    target = f"ipv6:[{address}]:{endpoint.port}" if ":" in address else f"ipv4:{address}:{endpoint.port}"
    options = [
        ("grpc.enable_http_proxy", 0),  # the cluster is not on the Internet
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own: one that hangs must not be shared
        # how long a member may hold an abandoned channel, instead of 20 s; more than DIAL_S, when it is known to be
        # silent
        ("grpc.min_reconnect_backoff_ms", int(2 * DIAL_S * 1000)),
        ("grpc.max_receive_message_length", -1),  # a list of thousands of nodes
        ("grpc.default_authority", str(endpoint)),
    ]
    if not security.tls:
        return grpc.aio.insecure_channel(target, options=options)
    options.append(("grpc.ssl_target_name_override", endpoint.host))
    trusted = security.cacert or ssl.get_default_verify_paths().cafile  # the system may have none there
    authorities = read_file(trusted, "cacert") if trusted else None
    key = read_file(security.key, "key") if security.key else None
    chain = read_file(security.cert, "cert") if security.cert else None
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(authorities, key, chain), options=options)
