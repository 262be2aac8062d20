"""Where etcd is, and how to talk to it: from the endpoint, the options, files and the environment."""

from __future__ import annotations

from rdzv_plugins.backends.etcd import EtcdOptions
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kit import validate_elastic
from rdzv_plugins.kit.security import Account, Security, parse_address

_PORT = 2379
_SCHEMES = "http", "https"
ACCOUNT = Account("etcd")


def parse_members(text: str) -> tuple[tuple[Endpoint, ...], str]:
    """The members of --rdzv-endpoint, each with or without http:// or https://, and the scheme, empty if none has one.

    Raises ``UsageError`` for an empty list, for what is not a member, and for two different schemes.
    """
    addresses = [parse_address(part, _PORT, _SCHEMES) for part in text.split(",") if part.strip()]
    members = tuple(dict.fromkeys(endpoint for _, endpoint, _ in addresses))
    schemes = {scheme for scheme, _, _ in addresses if scheme}
    if not members:
        raise UsageError(
            "backend 'etcd' needs to know where etcd is",
            remedy="Give --rdzv-endpoint=HOST:2379, or all members: HOST1:2379,HOST2:2379,HOST3:2379.",
        )
    if len(schemes) > 1:
        raise UsageError(
            f"--rdzv-endpoint={text} mixes http:// and https://", remedy="All members of a cluster speak the same."
        )
    return members, "".join(schemes)


def validate(request: Request) -> tuple[tuple[Endpoint, ...], Security]:
    """Reject contradictions and unreadable files before anything starts; returns the members, and how to talk to them.

    Raises ``UsageError``.
    """
    validate_elastic(request)
    members, scheme = parse_members(request.endpoint)
    options: EtcdOptions = request.options
    if scheme and options.protocol and scheme != options.protocol:
        raise UsageError(
            f"--rdzv-endpoint={request.endpoint} contradicts --rdzv-conf protocol={options.protocol}",
            remedy="Give only one of them.",
        )
    asked = scheme or options.protocol or ""
    return members, options.security(ACCOUNT, options.credentials, _SCHEMES, asked)
