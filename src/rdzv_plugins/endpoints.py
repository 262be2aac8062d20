"""One parser for ``host:port``, so that every backend rejects the same mistakes in the same words."""

from __future__ import annotations

import ipaddress
import re

from msgspec import Struct

from rdzv_plugins.errors import RunIdMissing, UsageError
from rdzv_plugins.interfaces import DEFAULT_RUN_ID, Request

_HOST = re.compile(r"[\w.-]+")


class Endpoint(Struct, frozen=True):
    """A host (name, IPv4 or IPv6 address without brackets) and a port (0: any free one)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True for localhost and loopback addresses: only this machine can reach it."""
        return is_loopback_address(self.host)


def is_loopback_address(host: str) -> bool:
    """True for localhost and for loopback addresses."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_endpoint(text: str, default_port: int | None, *, what: str = "--rdzv-endpoint") -> Endpoint:
    """Split ``host``, ``host:port`` or ``[v6]:port``.

    ``default_port`` None makes the port mandatory. Raises ``UsageError`` for an IPv6 address without brackets, a bad
    host or a port out of range.
    """
    text = text.strip()
    if "," in text:
        raise UsageError(f"{what}: {text!r} names several places, where one is wanted", remedy="Name one of them.")
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not _is_ipv6(host) or (rest and not rest.startswith(":")):
            raise UsageError(f"{what}: {text!r} is not an IPv6 address in brackets", remedy="Write [ADDRESS]:PORT.")
        port_text = rest[1:] if rest else ""
    elif text.count(":") > 1 and "/" not in text:
        raise UsageError(
            f"{what}: {text!r} is ambiguous: an IPv6 address needs brackets",
            remedy=f"Write [{text}]:PORT, or [ADDRESS]:PORT if the last part was meant as the port.",
        )
    else:
        host, _, port_text = text.partition(":")
        if "/" in text or not _HOST.fullmatch(host):
            raise UsageError(f"{what}: {text!r} has no valid host name or address", remedy="Write HOST:PORT.")
    if not port_text:
        if default_port is None:
            raise UsageError(f"{what}: {text!r} has no port", remedy=f"Write {text.rstrip(':')}:PORT.")
        return Endpoint(host, default_port)
    return Endpoint(host, check_port(port_text, what=what))


def is_only_local(text: str) -> bool:
    """True if none of the endpoints, separated by commas, can be reached from another machine."""
    try:
        found = [parse_endpoint(part.rpartition("://")[2], 0) for part in filter(None, text.split(","))]
    except UsageError:  # in a form that only its backend knows
        return False
    return bool(found) and all(endpoint.is_loopback for endpoint in found)


ALONE = Endpoint("localhost", 0)
"""Where a node meets if it has no others to meet: at a port that nobody else knows."""


def meeting_point(request: Request, default_port: int | None) -> Endpoint:
    """Where the nodes of ``request`` meet; a single node that was given no endpoint meets ``ALONE``.

    ``default_port`` is as for ``parse_endpoint``. Also raises ``UsageError`` for several nodes without an endpoint, or
    with port 0.
    """
    require_meeting_point(request.endpoint, request.max_nodes)
    endpoint = parse_endpoint(request.endpoint, default_port) if request.endpoint else ALONE
    if endpoint.port == 0 and request.max_nodes > 1:
        raise UsageError(
            "--rdzv-endpoint: port 0 is for one node only: the others could not find it",
            remedy="Choose a port, the same on every node.",
        )
    return endpoint


def require_meeting_point(endpoint: str, nodes: int, *, also: str = "") -> None:
    """Refuse several nodes that have no place to meet. Raises ``UsageError``."""
    if nodes > 1 and not endpoint:
        raise UsageError(
            f"--nnodes asks for {nodes} nodes, but there is no endpoint where they could meet{also}",
            remedy="Give --rdzv-endpoint=HOST:PORT or --master-addr=HOST --master-port=PORT, the same on every node.",
        )


def require_name(endpoint: str, *, named: bool) -> None:
    """Refuse a job without a run id of its own at ``endpoint``, where others may meet. Raises ``RunIdMissing``."""
    if not named:
        raise RunIdMissing(
            f"other jobs may meet at {endpoint}, too, and this one has no name there: its run id is the default, "
            f"{DEFAULT_RUN_ID!r}",
            remedy="Name it, the same on all its nodes and as no other job: rdzv-run --rdzv-id=NAME ... "
            "(torchrun: --rdzv-id, too; or the variable PET_RDZV_ID=NAME).",
        )


def check_port(port: str | int, *, what: str) -> int:
    """``port`` as a number from 0 to 65535. Raises ``UsageError``."""
    if not str(port).isdecimal() or len(str(port)) > 5 or int(port) > 65535:
        raise UsageError(f"{what}: port {port} is out of range", remedy="Ports go from 0 to 65535.")
    return int(port)


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False
