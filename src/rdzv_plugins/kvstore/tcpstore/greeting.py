"""Greets a TCPStore, torch's or the native one, on behalf of an agent: is it one? Then makes a client of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.kvstore.tcpstore import wire
from rdzv_plugins.kvstore.tcpstore.whose import Stranger, look_if_silent, unknown

if TYPE_CHECKING:
    import socket


def greet_store(connection: socket.socket, stranger: Stranger = unknown) -> str:
    """A ``Greeting`` that asks whether this is a store. ``stranger`` is asked when something else listens there."""
    try:
        wire.greet(connection, on_sent=lambda: look_if_silent(connection, stranger))
    except TimeoutError:
        return "something accepts connections there, but does not answer as a torch TCPStore"
    except wire.NotAStore as error:
        if known := stranger():
            raise known from None
        host, port = connection.getpeername()[:2]
        raise EndpointUnreachable(
            f"{Endpoint(host, port)} is not a torch TCPStore: it answered {error.args[0]!r}",
            remedy="Another program uses that port. Choose another port, the same on every node.",
        ) from None
    except ConnectionError:  # a store just ending or starting; or HTTP, which finds a line's end in the greeting
        if known := stranger():
            raise known from None
        return "something accepts connections there and hangs up"
    return ""
