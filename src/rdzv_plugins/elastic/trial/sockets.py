"""Sockets of a trial in an event loop: whole messages, or an error that says what happened."""

from __future__ import annotations

import asyncio
import socket as sockets
import struct
from typing import Any

from rdzv_plugins.kvstore.sockets.reach import REFUSED

_MIN_RTT_AT, _DELIVERY_RATE_AT = 148, 160
_NO_RTT = 2**31


class Broken(Exception):
    """The way between two nodes is of no use; the text says why."""


async def dial(address: str, port: int) -> sockets.socket:
    """A connection to a numeric address. Raises ``OSError``."""
    family = sockets.AF_INET6 if ":" in address else sockets.AF_INET
    connection = sockets.socket(family, sockets.SOCK_STREAM)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (address, port))
        connection.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
    except BaseException:
        connection.close()
        raise
    return connection


async def send(socket: sockets.socket, data: bytes | memoryview) -> None:
    """Send all of it. Raises ``OSError``."""
    await asyncio.get_running_loop().sock_sendall(socket, data)


async def receive(socket: sockets.socket, size: int) -> bytes:
    """Receive exactly ``size`` bytes. Raises ``Broken`` if the connection ends first, ``OSError`` if it breaks."""
    return bytes(await receive_into(socket, memoryview(bytearray(size))))


async def receive_into(socket: sockets.socket, buffer: memoryview) -> memoryview:
    """Fill ``buffer``; raises as ``receive`` does."""
    loop, filled = asyncio.get_running_loop(), 0
    while filled < len(buffer):
        count = await loop.sock_recv_into(socket, buffer[filled:])
        if count == 0:
            raise Broken("the other end has closed the connection")
        filled += count
    return buffer


async def receive_struct(socket: sockets.socket, form: struct.Struct) -> tuple[Any, ...]:
    """Receive a struct of that form; returns its fields."""
    return form.unpack(await receive(socket, form.size))


def least_latency(socket: sockets.socket) -> float:
    """The lowest round-trip time in seconds that the kernel has seen on this connection; 0 if it does not tell.

    The kernel's acknowledgements wait for no process, so this measures the network even when all processors are busy.
    Source: ``tcpi_min_rtt`` of tcp(7), linux/tcp.h.
    """
    microseconds = _told(socket, _MIN_RTT_AT, "I")
    return microseconds / 1e6 if microseconds < _NO_RTT else 0.0


def delivered(socket: sockets.socket) -> float:
    """Bytes per second at which the other end's kernel has lately accepted data; 0 if this one does not tell.

    Source: ``tcpi_delivery_rate``, linux/tcp.h. This does not wait for a process either, as long as there is room.
    """
    return float(_told(socket, _DELIVERY_RATE_AT, "Q"))


def _told(socket: sockets.socket, at: int, form: str) -> int:
    """A field of the kernel's ``tcp_info``; 0 if it has none."""
    if not hasattr(sockets, "TCP_INFO"):
        return 0
    size = at + struct.calcsize(form)
    told = socket.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, size)
    return int(struct.unpack_from(form, told, at)[0]) if len(told) >= size else 0


def reason_of(error: BaseException) -> str:
    """Why a connection is of no use, in words."""
    if isinstance(error, ConnectionRefusedError):
        return REFUSED
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        return (error.strerror or str(error)).lower()
    return str(error) or type(error).__name__
