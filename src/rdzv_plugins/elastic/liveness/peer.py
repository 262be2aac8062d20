"""Where a node's own port is, and what is said on a connection to it, by which others know that its process lives.

::

    the dialling end     rdzv-alive 1 <node id>
    the listening end    rdzv-here 1 <node id> <its own address and port> <those of the other end>
    the listening end    rdzv-waits          the service does not do what its node needs; may be repeated
    the listening end    rdzv-bye            it closes this connection of its own will

Each is one line of UTF-8 that ends in a line feed. The addresses are those that the listening process sees; the
dialling process compares them with what it sees itself. If they differ, something is in between (address translation, a
relay), and then a refusal would not be the host's own.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

from rdzv_plugins.elastic.keys import Leading, Member
from rdzv_plugins.endpoints import is_loopback_address


@dataclass(frozen=True)
class Peer:
    """A node by its id, and where to dial it: an IP address and a port."""

    node_id: str
    host: str
    port: int
    name: str = ""  # the name it answers to there, if that is not its id


def peer_of(other: Member | Leading, machine: str) -> Peer | None:
    """How to dial another node from ``machine``; None if it does not say, or gives only a name."""
    if not other.listens:
        return None
    near = other.machine == machine or not is_loopback_address(other.address)
    host = other.address if near else other.public
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None
    return Peer(other.node_id, host, other.listens, name_of(other.node_id, other.moves) if other.moves else "")


def name_of(node_id: str, moves: int) -> str:
    """The name a node answers to at its own port.

    What is proved there about it holds for one of several endpoints only. So the name is not its id alone: the next
    port that it opens may have the same number as the one before.
    """
    return f"{node_id}.{moves}" if moves else node_id


WAITS = b"rdzv-waits\n"
BYE = b"rdzv-bye\n"
MOST_BYTES = 1024  # the most bytes of a line


def hello(node_id: str) -> bytes:
    """What the dialling end says: whom it wants."""
    return f"rdzv-alive 1 {node_id}\n".encode()


def answer(node_id: str, listener: Any, caller: Any) -> bytes:
    """What the listening end says. ``listener`` and ``caller`` are the connection's ends as the socket names them."""
    return f"rdzv-here 1 {node_id} {_plain(listener)} {_plain(caller)}\n".encode()


def _plain(end: Any) -> str:
    """An address and port in one form, whatever kind of socket has named it."""
    address = ipaddress.ip_address(str(end[0]).partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return f"{mapped or address} {end[1]}"
