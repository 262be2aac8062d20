"""Noticing, by means of TCP, that the machine at the other end of a connection has gone without a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rdzv_plugins.runtime import (
    IPPROTO_TCP,
    SO_KEEPALIVE,
    SOL_SOCKET,
    TCP_KEEPCNT,
    TCP_KEEPIDLE,
    TCP_KEEPINTVL,
    TCP_USER_TIMEOUT,
)

if TYPE_CHECKING:
    import socket

_AFTER_S = 10
_PROBES = 3
_RESENDS = (TCP_USER_TIMEOUT, 1000 * _AFTER_S * (_PROBES + 1))


def keep_alive(connection: socket.socket) -> None:
    """Have a connection count as lost when its other end has not answered for about 40 s.

    The kernel at that end answers, even if the process stands still. The kernel at this end does not ask while what it
    has sent is not confirmed: it sends that again, by itself for a quarter of an hour.
    """
    connection.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
    for option, value in ((TCP_KEEPIDLE, _AFTER_S), (TCP_KEEPINTVL, _AFTER_S), (TCP_KEEPCNT, _PROBES), _RESENDS):
        if option:  # on Linux; elsewhere the system's own times apply
            connection.setsockopt(IPPROTO_TCP, option, value)
