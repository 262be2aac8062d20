"""Whether a Redis that hangs up or keeps silent speaks TLS, or does not: asked without redis-py, which cannot tell."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from rdzv_plugins.kit import Reason, within

from rdzv_redis.refusals import NO_TLS, STRANGE, WANTS_TLS
from rdzv_redis.target import Target

_PING = b"PING\r\n"
_ENOUGH = 512
_LIMIT_S = 0.9


async def diagnose(target: Target, *, tls: bool) -> Reason | None:
    """What is wrong, or None if this cannot tell. Takes less than a second; never raises."""
    with contextlib.suppress(OSError, EOFError, asyncio.TimeoutError, TimeoutError):
        if tls:
            answer = await within(_LIMIT_S, _ask(target, None))
            return NO_TLS if answer[:1] in (b"+", b"-") else None
        try:
            answer = await within(_LIMIT_S, _ask(target, _anyone()))
        except ssl.SSLError as error:
            # it has answered in TLS, for example: where is your certificate?
            return WANTS_TLS if "ALERT" in (error.reason or "") else None
        return WANTS_TLS if answer[:1] in (b"+", b"-") else STRANGE
    return None


def _anyone() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def _ask(target: Target, context: ssl.SSLContext | None) -> bytes:
    reader, writer = await asyncio.open_connection(target.host, target.port, ssl=context)
    try:
        writer.write(_PING)
        return await reader.read(_ENOUGH)
    finally:
        writer.transport.abort()
