"""The members of an etcd cluster, and a gRPC channel to one of them: how a session asks, whatever it asks.

On the loop's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rdzv_plugins.backends.etcd import ACCOUNT
from rdzv_plugins.backends.etcd.api import grpc, rpc
from rdzv_plugins.backends.etcd.diagnosis import SILENT, diagnose
from rdzv_plugins.backends.etcd.refusals import (
    NO_LEADER,
    SILENT_NOW,
    is_about_users,
    is_old_token,
    is_wrong_password,
    text_of,
    translated,
)
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, RdzvError
from rdzv_plugins.kit.client import ServiceClient
from rdzv_plugins.kit.loop import TIMEOUTS, here, in_thread, looked_at
from rdzv_plugins.kit.reasons import Reason, Unusable
from rdzv_plugins.kit.security import Security
from rdzv_plugins.kvstore.sockets.reach import resolve, try_connect
from rdzv_plugins.kvstore.tcpstore.listener import SAME_BACKEND
from rdzv_plugins.security.certificates import read_file

Whose = Callable[[str], str] | None
"""Tells what listens at an endpoint: see ``Request.whose``. None: nobody can be asked."""

DIAL_S = 3.0
"""How many seconds one member is given to accept a connection and to answer the first question."""
_LOGIN = "Auth/Authenticate"
_STREAMS = ("Watch/Watch", "Lease/LeaseKeepAlive")
_REQUIRE_LEADER = ("hasleader", "true")
"""A member that has lost the majority says so at once, even on streams, instead of leaving them silent."""

_STAGGER_S = 0.3
"""After this many seconds a member that has not answered is no longer waited for: the next is asked as well."""
_COMPARE_S = 0.5
"""How many seconds a start may be delayed by checking that all members belong to one cluster."""
_LOGIN_S = 60.0
_LOOK_S = 0.5
"""Seconds between two looks at a file that is about to be written."""
_SILENT_SINCE = Reason(f"{NO_LEADER}; it has not answered since it said so")
_LOST = (OSError, EOFError, *TIMEOUTS)
_LOGINS = 3
"""The most logins during one request: users may be changed while it is made."""
_NO_ANSWER_YET = Reason("no answer yet")
_FOREIGN = Reason(
    "it belongs to another etcd cluster than the member that was used before",
    "--rdzv-endpoint has to name members of one cluster.",
    final=True,
)


class Connection:
    """A connection to the member at ``endpoint``, made by ``open_connection``; the addresses are of both its ends."""

    def __init__(self, endpoint: Endpoint, security: Security, channel: Any, local_addr: str, remote_addr: str) -> None:
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
            raise EOFError from None

    def stream(self, method: str) -> Any:
        """gRPC's call of a streaming method: "Watch/Watch" or "Lease/LeaseKeepAlive". Raises ``EOFError``."""
        return self._method(method)(metadata=self._metadata)

    def _method(self, name: str) -> Any:
        """The method, made when it is needed: a connection that only asks who is there needs just one."""
        if self._channel is None:
            raise EOFError
        if name not in self._methods:
            messages = name.partition("/")[2]  # they are called after it
            request, answer = getattr(rpc, f"{messages}Request"), getattr(rpc, f"{messages}Response")
            make = self._channel.stream_stream if name in _STREAMS else self._channel.unary_unary
            self._methods[name] = make(f"/etcdserverpb.{name}", request.SerializeToString, answer.FromString)
        return self._methods[name]

    async def logged_in(self, timeout: float, old: str | None = None) -> None:
        """Return once there is a token, if there is a user. Raises ``AioRpcError``, ``TimeoutError`` and ``EOFError``.

        ``old``: one that is of no use any more; a new one that somebody else has obtained meanwhile is kept. All tasks
        that want one wait for the same login, even if one of them has given up waiting: each password costs etcd a
        tenth of a second of a processor, and thousands of nodes may start at once.
        """
        if not self._security.user:
            return
        login = self._login
        if login is None or (login.done() and (self.token == old or login.cancelled() or login.exception())):
            login = self._login = asyncio.get_running_loop().create_task(self._log_in())
            login.add_done_callback(looked_at)
        done, _ = await asyncio.wait({login}, timeout=max(0.0, timeout))
        if not done:
            raise TimeoutError
        if login.cancelled():  # by ``drop``
            raise EOFError
        login.result()

    @property
    def token(self) -> str:
        """The token of the user who has logged in; empty if none has, or needs to."""
        return dict(self._metadata).get("token", "")

    async def _log_in(self) -> None:
        login = await in_thread(ACCOUNT.login, self._security)
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


async def open_connection(endpoint: Endpoint, security: Security, whose: Whose = None) -> Connection:
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
        status = await connection.unary("Maintenance/Status", rpc.StatusRequest(), DIAL_S)
        connection.cluster_id = status.header.cluster_id
    except grpc.aio.AioRpcError as error:
        # it tells anybody that there is no leader; from 3.5.28 on it tells only some users which cluster it belongs to
        if not is_about_users(error):
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


async def _reason(error: Any, endpoint: Endpoint, security: Security, whose: Whose) -> Reason:
    silent = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    if not silent and (error.details() or "").startswith("etcdserver: "):  # it is etcd, and says itself what is wrong
        return Reason(text_of(error))
    found = SILENT if silent else await in_thread(diagnose, endpoint, security, DIAL_S)
    if whose and (found is None or found is SILENT) and (what := await in_thread(whose, str(endpoint))):
        return Reason(f"it is {what}; this node was given --rdzv-backend=etcd", SAME_BACKEND, True)
    return found or Reason(text_of(error))


def _channel(endpoint: Endpoint, security: Security, address: str) -> Any:
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


class ClusterClient(ServiceClient):
    """A session's way to an etcd cluster, of which one member is used at a time, and another when that fails.

    ``path`` is where the run's keys are, for messages. ``whose`` tells what listens where no member answers, and is
    asked until a member has been of use.
    """

    service = "etcd"
    security: Security

    def __init__(self, endpoints: Sequence[Endpoint], security: Security, path: str, whose: Whose = None) -> None:
        super().__init__()
        self.address, self.security = ",".join(map(str, endpoints)), security
        self._endpoints, self._path, self._whose = tuple(endpoints), path, whose
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._reasons: dict[Endpoint, Reason] = {}
        self._id = 0  # of the cluster, once it is known
        self._proven = False  # it has been of use: what was right then is expected to become right again

    async def connect(self) -> None:
        """Connect to a member that can be used, and log in, if there is a user.

        Each member is tried once, also when whoever waits for it gives up: it is for the next one. Raises ``Unusable``,
        with what is wrong with each, or ``EndpointUnreachable``.
        """
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(looked_at)
        connecting = self._connecting
        await asyncio.wait({connecting})
        self._connecting = None
        if connecting.cancelled():
            raise EOFError("the session has been closed")
        connection = self._connection = connecting.result()
        self.local_addr, self.remote_addr = connection.local_addr, connection.remote_addr

    async def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.drop()

    async def close(self) -> None:
        """Try no longer."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait({connecting})
            if not connecting.cancelled() and connecting.exception() is None:
                await connecting.result().drop()

    def reason_of(self, error: Exception) -> Reason | None:
        """What is wrong with each member, if one of them does not answer."""
        if not isinstance(error, _LOST):
            return None
        if self._connection is not None:
            self._reasons[self._connection.endpoint] = Reason(text_of(error))
        return self._reason()

    def _reason(self) -> Reason:
        """What is wrong with each member, and what the user can do; final if it is for all of them."""
        known = {endpoint: self._reasons.get(endpoint, _NO_ANSWER_YET) for endpoint in self._endpoints}
        text = "; ".join(f"{endpoint}: {reason.text}" for endpoint, reason in known.items())
        remedies = dict.fromkeys(reason.remedy for reason in known.values() if reason.remedy)
        return Reason(text, " ".join(remedies), final=all(reason.final for reason in known.values()))

    def _connected(self) -> Connection:
        if self._connection is None:  # it has just been left
            raise EOFError
        return self._connection

    async def _ask(self, what: str, method: str, request: Any) -> Any:
        """The answer of the member in use to a method such as "KV/Txn"; ``what`` is for messages.

        Raises what a client may, and ``SessionEnded`` if a lease has ended.
        """
        answer = await self._logged_in(what, lambda connection: connection.unary(method, request))
        connection = self._connected()
        connection.cluster_id = answer.header.cluster_id or connection.cluster_id
        self._id = self._id or connection.cluster_id
        if self._is_of_another(connection):
            raise EOFError(_FOREIGN.text)
        return answer

    async def _logged_in(self, what: str, ask: Callable[[Connection], Any]) -> Any:
        """What ``ask`` returns, with another token if etcd does not know the one in use any more."""
        connection = self._connected()
        with self._translated(what):
            for _ in range(_LOGINS):
                token = connection.token
                try:
                    return await ask(connection)
                except grpc.aio.AioRpcError as error:
                    if not (self.security.user and is_old_token(error)):
                        raise
                await self._log_in(connection, token)
            return await ask(connection)

    async def _log_in(self, connection: Connection, old: str | None = None) -> None:
        """Log in, also where there is a token: ``old``, which is of no use any more.

        Raises ``EOFError`` if the member cannot do that now, and the errors of ``translated``. If a password that was
        once right no longer is, it was changed: the file that has it is about to change, too. Then it raises
        ``Unusable``.
        """
        try:
            await connection.logged_in(_LOGIN_S, old)
        except TimeoutError:
            raise EOFError(SILENT_NOW) from None
        except grpc.aio.AioRpcError as error:
            refused = translated(error, "the login", self._path, self.security)
            may_change = self._proven and self.security.credentials and is_wrong_password(error)
            if may_change and isinstance(refused, RdzvError):
                refused = Unusable(Reason(str(refused), refused.remedy))
            raise refused from None

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """gRPC's errors as those that a client may raise."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise translated(error, what, self._path, self.security) from None
        except (grpc.aio.UsageError, asyncio.InvalidStateError):  # its channel or its stream is closed
            raise EOFError from None

    async def _connect(self) -> Connection:
        found = await self._any_member()
        if found is None:
            raise Unusable(self._reason())
        try:
            if not self._id and found.cluster_id:
                self._id = found.cluster_id
                await self._compare(found)
            await self._wait_for_login(found)
        except EOFError as error:
            await found.drop()
            self._reasons[found.endpoint] = Reason(text_of(error))
            raise Unusable(self._reason()) from None
        except BaseException:
            await found.drop()
            raise
        self._reasons.clear()
        return found

    async def _wait_for_login(self, connection: Connection) -> None:
        self._reasons[connection.endpoint] = Reason("it has not answered the login yet")
        while True:
            try:
                await self._log_in(connection)
                return
            except Unusable as error:
                self._reasons[connection.endpoint] = error.reason
            await asyncio.sleep(_LOOK_S * here().random.uniform(0.5, 1.5))  # thousands must not come back at once

    async def _any_member(self) -> Connection | None:
        """The first usable member, in random order so that the nodes spread over the members."""
        found: list[Connection] = []
        started: list[asyncio.Task[None]] = []
        trying: set[asyncio.Task[None]] = set()
        try:
            for endpoint in here().random.sample(self._endpoints, len(self._endpoints)):
                started.append(asyncio.get_running_loop().create_task(self._try(endpoint, found)))
                _, trying = await asyncio.wait(
                    {*trying, started[-1]}, timeout=_STAGGER_S, return_when=asyncio.FIRST_COMPLETED
                )
                if found:
                    break
            while trying and not found:
                _, trying = await asyncio.wait(trying, return_when=asyncio.FIRST_COMPLETED)
            return found[0] if found else None
        except asyncio.CancelledError:
            await _drop(found)
            raise
        finally:
            for task in started:
                task.cancel()
            await _drop(found[1:])

    async def _try(self, endpoint: Endpoint, found: list[Connection]) -> None:
        try:
            connection = await open_connection(endpoint, self.security, None if self._proven else self._whose)
        except Unusable as error:
            lost = error.reason == SILENT and self._reasons.get(endpoint) in (Reason(NO_LEADER), _SILENT_SINCE)
            self._reasons[endpoint] = _SILENT_SINCE if lost else error.reason
            return
        except Exception as error:  # such as a certificate's file that no longer exists
            self._reasons[endpoint] = Reason(str(error) or repr(error), getattr(error, "remedy", ""))
            return
        if self._is_of_another(connection):
            self._reasons[endpoint] = _FOREIGN
            await connection.drop()
            return
        found.append(connection)

    def _is_of_another(self, connection: Connection) -> bool:
        return bool(self._id and connection.cluster_id) and connection.cluster_id != self._id

    async def _compare(self, used: Connection) -> None:
        """Compare clusters: nodes that wait for each other in different ones would never notice.

        Raises ``EndpointUnreachable``.
        """
        others = [endpoint for endpoint in self._endpoints if endpoint != used.endpoint]
        checks = [asyncio.get_running_loop().create_task(self._is_foreign(endpoint)) for endpoint in others]
        if not checks:
            return
        done, late = await asyncio.wait(checks, timeout=_COMPARE_S)
        for task in late:
            task.cancel()
        foreign = [endpoint for endpoint, task in zip(others, checks, strict=True) if task in done and task.result()]
        if foreign:
            raise EndpointUnreachable(
                f"{', '.join(map(str, foreign))} and {used.endpoint} are members of different etcd clusters",
                remedy="--rdzv-endpoint has to name members of one cluster, the same on every node.",
            )

    async def _is_foreign(self, endpoint: Endpoint) -> bool:
        try:
            connection = await open_connection(endpoint, self.security)
        except Unusable:  # its turn comes when it is needed
            return False
        await connection.drop()
        return self._is_of_another(connection)


async def _drop(connections: Sequence[Connection]) -> None:
    for connection in connections:
        await connection.drop()
