"""``etcd``: elastic rendezvous on an etcd v3 cluster, so that no training node is special.

Features: those of ``parallel``, and the loss of any node, the first included, costs one re-rendezvous.
Endpoint: the members, ``HOST[:PORT],HOST[:PORT]``, port 2379 when left out. Needs ``rdzv-plugins[etcd]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rdzv_plugins.backends import later
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.hookspecs import hookimpl
from rdzv_plugins.interfaces import Backend, Capability, Request
from rdzv_plugins.kit import Account, ElasticOptions, Security, TlsOptions, parse_address, validate_elastic
from rdzv_plugins.options import option

_PORT = 2379
_SCHEMES = "http", "https"
ACCOUNT = Account("etcd")


@dataclass(frozen=True)
class EtcdOptions(TlsOptions, ElasticOptions):
    """The options of every elastic backend, and how to talk to etcd."""

    ttl: float = option(
        10,
        help="A node that is not heard from for this long is lost; whole seconds.",
        unit="s",
        minimum=2,
        maximum=3600,
    )
    prefix: str = option("/rdzv-plugins", help="All keys begin with this.")
    protocol: Literal["http", "https"] | None = option(
        None, help="https: TLS. Unset: as in the endpoint, or https if cacert or cert is given."
    )
    credentials: str | None = option(
        None, help="File with one line, user:password; unset: RDZV_ETCD_USER and RDZV_ETCD_PASSWORD, if set."
    )


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


@hookimpl
def rdzv_register_backends() -> Backend:
    """Register the backend: the hook through which it is found."""
    return Backend(
        name="etcd",
        summary="elastic rendezvous (min:max nodes) on an etcd v3 cluster: no node of the job is special",
        create=later(f"{__name__}.coordination", "create"),
        capabilities=frozenset(
            {Capability.ELASTIC, Capability.NODE_RANK, Capability.NODE_REPLACEMENT, Capability.TOKEN}
        ),
        options=EtcdOptions,
        validate=validate,
        preflight=later(f"{__name__}.coordination", "preflight"),
        meets_at="service",
        recognise=later(f"{__name__}.diagnosis", "recognise"),
        health=later(f"{__name__}.looks", "health"),
        install="pip install 'rdzv-plugins[etcd]'",
        imports=("grpc", "google.protobuf"),
    )
