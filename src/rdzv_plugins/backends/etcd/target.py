"""Where etcd is, and how to talk to it: from the endpoint, the options, files and the environment."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from rdzv_plugins.backends.etcd import EtcdOptions
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kit import validate_elastic
from rdzv_plugins.kit.security import Account, Security

_PORT = 2379
_SCHEMES = ("http", "https")
ACCOUNT = Account("etcd")
USER, PASSWORD = ACCOUNT.user_variable, ACCOUNT.password_variable


@dataclass(frozen=True)
class EtcdSecurity(Security):
    """How to talk to the members, and as whom."""

    credentials: str | None = None
    """The file that user and password come from, if any. It may be written again while the job runs."""

    def login(self) -> tuple[str, str]:
        """User and password as the file has them now, or those from the start if it has none. Reads the file."""
        if self.credentials is not None:
            with contextlib.suppress(UsageError):  # it is being written
                return ACCOUNT.read(self.credentials)
        return self.user, self.password


def parse_members(text: str) -> tuple[tuple[Endpoint, ...], str]:
    """The members of --rdzv-endpoint, each with or without http:// or https://, and the scheme, empty if none has one.

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
        endpoint = parse_endpoint(rest.rstrip("/") if sign else rest, _PORT)
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


def validate(request: Request) -> tuple[tuple[Endpoint, ...], EtcdSecurity]:
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
    scheme = scheme or options.protocol or ("https" if options.cacert or options.cert else "http")
    if scheme == "http" and (options.cacert or options.cert):
        raise UsageError(
            "--rdzv-conf: cacert and cert are for TLS, but http was asked for", remedy="Write https, or leave them out."
        )
    user, password = ACCOUNT.read(options.credentials)
    return members, EtcdSecurity(
        scheme == "https", options.cacert, options.cert, options.key, user, password, options.credentials
    )
