"""One connection to Redis by redis-py, and what a Redis has to be to be of use. On the loop's thread only."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import socket
from importlib import resources
from typing import Any

from rdzv_plugins.kit import Reason, Security, Unusable
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from rdzv_redis import Target
from rdzv_redis.refusals import CLUSTER, REPLICA, SENTINEL

SCRIPT = resources.files("rdzv_redis").joinpath("run.lua").read_text()
_SHA = hashlib.sha1(SCRIPT.encode()).hexdigest()  # by which Redis knows it
_FIRST_VERSION = (6, 2)
_HAS_DRIVER_INFO = "driver_info" in inspect.signature(AbstractConnection.__init__).parameters
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class Wire:
    """A connection: ``open`` it once, then one command at a time."""

    def __init__(self, target: Target, security: Security) -> None:
        options: dict[str, Any] = {
            "host": target.endpoint.host,
            "port": target.endpoint.port,
            "db": target.db,
            "username": security.user or None,
            "password": security.password or None,
            "protocol": 2,
            "socket_timeout": None,  # who asks has a deadline
            "socket_connect_timeout": None,
            "socket_keepalive": True,
            "socket_keepalive_options": {
                getattr(socket, name): value for name, value in _KEEP_ALIVE.items() if hasattr(socket, name)
            },
            "redis_connect_func": self._reached,
            # redis-py would tell its version, and not look at the answer: a refusal that comes first would be lost
            **({"driver_info": None} if _HAS_DRIVER_INFO else {"lib_name": None, "lib_version": None}),
        }
        self._connection: Any  # much of it is not typed
        if security.tls:
            connection = SSLConnection(**options)
            connection.ssl_context.context = security.context()  # its own would trust the system's authorities, too
            self._connection = connection
        else:
            self._connection = Connection(**options)
        self.local_addr = self.remote_addr = ""  # until TCP and TLS are up
        self.turn = asyncio.Lock()  # for those who share it
        self._transport: asyncio.WriteTransport | None = None

    async def open(self) -> None:
        """Connect, log in, and see what it is. Raises errors of redis-py, ``OSError`` and ``Unusable``."""
        await self._connection.connect()
        try:
            told = await self.ask("HELLO")
        except NoPermissionError:
            return  # this user may not ask; the script will show
        except ResponseError as error:
            if "unknown command" not in str(error).lower():
                raise
            told = [b"version", b"5"]
        check(dict(zip(told[::2], told[1::2], strict=False)))

    async def _reached(self, connection: Connection) -> None:
        writer = connection._writer  # redis-py has no other way to the socket
        assert writer is not None
        self.local_addr = str(writer.get_extra_info("sockname")[0])
        self.remote_addr = str(writer.get_extra_info("peername")[0])
        self._transport = writer.transport
        await connection.on_connect()

    async def ask(self, *command: Any) -> Any:
        """The answer to one command, in bytes. Whoever stops waiting has to drop the connection."""
        await self._connection.send_command(*command, check_health=False)
        return await self._connection.read_response(disable_decoding=True)

    async def script(self, keys: list[str], arguments: list[Any]) -> Any:
        """What ``run.lua`` returns."""
        try:
            return await self.ask("EVALSHA", _SHA, len(keys), *keys, *arguments)
        except NoScriptError:
            return await self.ask("EVAL", SCRIPT, len(keys), *keys, *arguments)

    async def drop(self) -> None:
        """Close it: whoever waits for an answer gets an error. May be repeated."""
        if self._transport is not None:
            self._transport.abort()  # redis-py would wait until all is sent, and TLS has said good-bye
        try:
            await self._connection.disconnect(nowait=True)
        except (OSError, asyncio.TimeoutError):
            pass


def check(facts: dict[bytes, Any]) -> None:
    """What HELLO says of the server. Raises ``Unusable``."""
    version = bytes(facts.get(b"version", b"")).decode(errors="replace")
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if number and number < _FIRST_VERSION:
        raise Unusable(Reason(f"it is Redis {version}, which is too old", "Redis 6.2 or later is needed.", final=True))
    if facts.get(b"mode") == b"cluster":
        raise Unusable(CLUSTER)
    if facts.get(b"mode") == b"sentinel":
        raise Unusable(SENTINEL)
    if facts.get(b"role") in (b"replica", b"slave"):
        raise Unusable(REPLICA)
