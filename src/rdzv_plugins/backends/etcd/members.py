"""``--rdzv-endpoint`` of an etcd cluster: one or more members, each with or without ``http://`` or ``https://``."""

from __future__ import annotations

from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import UsageError

DEFAULT_PORT = 2379
_SCHEMES = ("http", "https")


def parse_members(text: str) -> tuple[tuple[Endpoint, ...], str]:
    """Return (members, scheme); the scheme is empty if none is given.

    Raises ``UsageError`` for an empty list, for what is not a member, and for two different schemes.
    """
    members: dict[Endpoint, None] = {}
    schemes: dict[str, None] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        scheme, sign, rest = part.rpartition("://")
        if "@" in rest:  # do not repeat it here
            raise UsageError(
                "--rdzv-endpoint: a user or a password in it can be read by others, in the list of processes",
                remedy="Give --rdzv-conf credentials=FILE (one line, user:password), or the environment's variables.",
            )
        if sign:
            if scheme not in _SCHEMES:
                raise UsageError(
                    f"--rdzv-endpoint: {part!r} begins with neither http:// nor https://",
                    remedy="Write HOST:PORT, or https://HOST:PORT.",
                )
            schemes[scheme] = None
        endpoint = parse_endpoint(rest.rstrip("/") if sign else rest, DEFAULT_PORT)
        if endpoint.port == 0:
            raise UsageError(
                f"--rdzv-endpoint: {part!r} has port 0", remedy="etcd's port is 2379, if not told otherwise."
            )
        members[endpoint] = None
    if not members:
        raise UsageError(
            "backend 'etcd' needs to know where etcd is",
            remedy="Give --rdzv-endpoint=HOST:2379, or all members: HOST1:2379,HOST2:2379,HOST3:2379.",
        )
    if len(schemes) > 1:
        raise UsageError(
            f"--rdzv-endpoint={text} mixes http:// and https://", remedy="All members of a cluster speak the same."
        )
    return tuple(members), next(iter(schemes), "")
