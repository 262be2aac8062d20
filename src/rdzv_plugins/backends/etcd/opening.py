"""Reaching a member: a socket of our own first, which distinguishes the ways in which that can fail, then gRPC."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from rdzv_plugins.backends.etcd.api import grpc
from rdzv_plugins.backends.etcd.connection import DIAL_S, Connection
from rdzv_plugins.backends.etcd.diagnosis import SILENT, diagnose
from rdzv_plugins.backends.etcd.refusals import reason_of
from rdzv_plugins.backends.etcd.security import EtcdSecurity
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kit.loop import here, in_thread
from rdzv_plugins.kit.reasons import Reason, Unusable
from rdzv_plugins.kvstore.sockets.reach import resolve, try_connect
from rdzv_plugins.kvstore.tcpstore.listener import SAME_BACKEND

Whose = Callable[[str], str]
"""Tells what listens at an endpoint: see ``Request.whose``."""


def nobody_knows(endpoint: str) -> str:
    """A ``Whose`` for when nobody can be asked."""
    return ""


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
    connection = Connection(endpoint, security, make_channel(endpoint, security, remote_addr), local_addr, remote_addr)
    try:
        await connection.check()
    except grpc.aio.AioRpcError as error:
        await connection.drop("not used")
        raise Unusable(await _reason(error, endpoint, security, whose)) from None
    except BaseException:
        await connection.drop("not used")
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


def make_channel(endpoint: Endpoint, security: EtcdSecurity, address: str) -> Any:
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
    key, chain = security.certificate
    return grpc.aio.secure_channel(
        target, grpc.ssl_channel_credentials(security.authorities, key, chain), options=options
    )
