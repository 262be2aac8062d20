"""Noticing, by means of TCP, that the machine at the other end of a connection has gone without a word."""

from __future__ import annotations

import socket

_AFTER_S = 10
_PROBES = 3


def keep_alive(connection: socket.socket) -> None:
    """Have an idle connection count as lost when its other end has not answered for about 40 s.

    The kernel at that end answers, even if the process stands still.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _AFTER_S), ("TCP_KEEPINTVL", _AFTER_S), ("TCP_KEEPCNT", _PROBES)):
        if hasattr(socket, name):  # on Linux; elsewhere the system's own times apply
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
