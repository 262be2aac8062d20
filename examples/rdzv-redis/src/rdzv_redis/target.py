"""``--rdzv-endpoint`` of a Redis: ``HOST[:PORT]``, ``redis://HOST[:PORT][/DB]`` or ``rediss://HOST[:PORT][/DB]``."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.errors import UsageError

DEFAULT_PORT = 6379
_SCHEMES = ("redis", "rediss")


@dataclass(frozen=True)
class Target:
    """One Redis, and the number of a database there. ``scheme`` is empty where none was given."""

    host: str
    port: int
    scheme: str = ""
    db: int = 0

    @property
    def is_loopback(self) -> bool:
        """What is sent there does not leave this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_target(text: str, db: int | None) -> Target:
    """The endpoint, with ``db`` of --rdzv-conf. Raises ``UsageError`` for anything else, and if the two differ."""
    text = text.strip()
    if not text:
        raise UsageError(
            "backend 'redis' needs to know where Redis is",
            remedy="Give --rdzv-endpoint=HOST:6379, the same everywhere.",
        )
    scheme, sign, rest = text.rpartition("://")
    if "@" in rest:  # which is not repeated here
        raise UsageError(
            "--rdzv-endpoint: a user or a password in it can be read by others, in the list of processes",
            remedy="Give --rdzv-conf credentials=FILE (one line, user:password), or the environment's variables.",
        )
    if sign and scheme not in _SCHEMES:
        raise UsageError(
            f"--rdzv-endpoint: {text!r} begins with neither redis:// nor rediss://",
            remedy="Write HOST:PORT, or rediss://HOST:PORT for TLS.",
        )
    if "," in rest:
        raise UsageError(
            f"--rdzv-endpoint: {text!r} names several hosts, but backend 'redis' uses one Redis",
            remedy="Name one. Clusters and sentinels are not supported; a name or an address may move to another host.",
        )
    if sign:
        rest, _, number = rest.partition("/")
        if number:
            db = _same_db(number, db)
    endpoint = parse_endpoint(rest, DEFAULT_PORT)
    if endpoint.port == 0:
        raise UsageError(
            f"--rdzv-endpoint: {text!r} has port 0", remedy=f"Redis' port is {DEFAULT_PORT}, if not told otherwise."
        )
    return Target(endpoint.host, endpoint.port, scheme if sign else "", db or 0)


def _same_db(number: str, db: int | None) -> int:
    if not number.isdecimal():
        raise UsageError(
            f"--rdzv-endpoint: /{number} is not the number of a database", remedy="Write redis://HOST:PORT/0."
        )
    if db is not None and db != int(number):
        raise UsageError(
            f"--rdzv-endpoint ends in /{number}, which contradicts --rdzv-conf db={db}", remedy="Give only one of them."
        )
    return int(number)
