"""Moves torch's own client of a TCPStore to a Unix socket of the same store.

torch's client connects by TCP only, but once it has greeted it does nothing but send, receive and poll on one
descriptor. So a greeted connection over the Unix socket takes the place of that descriptor: what torch's client is,
does and raises stays torch's, even for callers in C++. Linux only, as it reads /proc/self/fd.

It is not a ``Store`` in Python: torch passes only part of the interface on to such a class (behind a ``PrefixStore``,
``delete_key``, ``num_keys``, ``list_keys`` and the queues do not reach it), the object in C++ outlives the one in
Python, and each request would need the GIL, even from torch's threads that watch whether a process hangs. A subclass in
C++ would need a wheel for each torch version.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

from rdzv_plugins.kvstore.tcpstore.wire import NotAStore, greet

_GREETING_S = 5.0
"""The store listens on this machine: it answers at once, or is in trouble."""
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_CREDENTIALS = "=iII"  # struct ucred: pid, uid, gid


class NotMoved(OSError):
    """The client continues to use TCP; ``str()`` says why."""


def open_sockets() -> frozenset[str]:
    """What /proc calls the sockets that this process has open. Raises ``OSError`` if there is no /proc."""
    return frozenset(_sockets())


def move(store: Any, path: str, before: frozenset[str]) -> None:
    """Have ``store``, a ``TCPStore`` that is only a client, talk to the same store over the Unix socket ``path``.

    ``@name`` is an abstract socket. ``before`` is what ``open_sockets`` returned before ``store`` was made, and nobody
    has used ``store`` since. Clones of ``store`` connect by TCP. Raises ``NotMoved``; ``store`` is then unchanged.
    """
    try:
        with _connect(path) as connection:
            descriptor = _client(store.port, before)
            os.set_blocking(connection.fileno(), os.get_blocking(descriptor))
            os.dup2(connection.fileno(), descriptor, inheritable=os.get_inheritable(descriptor))
    except NotMoved:
        raise
    except OSError as error:
        raise NotMoved(error.strerror or str(error)) from None


def _connect(path: str) -> socket.socket:
    """A greeted connection. Raises ``OSError``."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_GREETING_S)
        connection.connect("\0" + path[1:] if path.startswith("@") else path)
        owner, user = _owner(connection), os.geteuid()
        if owner not in (0, user) and user != 0:  # abstract names are free for anyone to take
            raise NotMoved(f"user {owner} listens there, not this one ({user})")
        try:
            greet(connection)
        except TimeoutError:
            raise NotMoved(f"no answer within {_GREETING_S:g} s") from None
        except NotAStore:
            raise NotMoved("what answers is no store") from None
        return connection
    except BaseException:
        connection.close()
        raise


def _owner(connection: socket.socket) -> int:
    """The user whose process listens at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_CREDENTIALS))
    return int(struct.unpack(_CREDENTIALS, credentials)[1])


def _client(port: int, before: frozenset[str]) -> int:
    """The descriptor of the client's TCP connection to ``port``. Raises ``NotMoved`` if that is not certain."""
    found = [
        descriptor for name, descriptor in _sockets().items() if name not in before and _leads_to(descriptor, port)
    ]
    if len(found) != 1:
        raise NotMoved(f"{len(found)} new connections of this process lead to port {port}, not one")
    if _has_input(found[0]):
        raise NotMoved("torch's connection is in use")
    return found[0]


def _sockets() -> dict[str, int]:
    """The open sockets by their names in /proc, which are unique."""
    sockets = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:  # closed in the meantime
            continue
        if name.startswith("socket:"):
            sockets[name] = int(entry)
    return sockets


def _leads_to(descriptor: int, port: int) -> bool:
    try:
        with _borrowed(descriptor) as connection:
            return connection.family in _INTERNET and bool(connection.getpeername()[1] == port)
    except OSError:  # no socket any more, or it is listening, or not connected yet
        return False


def _has_input(descriptor: int) -> bool:
    try:
        with _borrowed(descriptor) as connection:
            connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """The socket of a descriptor, which stays open. Raises ``OSError`` if it is no longer one."""
    borrowed = socket.socket(fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()
