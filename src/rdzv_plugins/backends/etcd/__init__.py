"""``etcd``: elastic rendezvous on an etcd v3 cluster, so that no training node is special.

Features: those of ``parallel``, and the loss of any node, the first included, costs one re-rendezvous.
Endpoint: the members, ``HOST[:PORT],HOST[:PORT]``, port 2379 when left out. Needs ``rdzv-plugins[etcd]``.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.hookspecs import hookimpl
from rdzv_plugins.interfaces import Backend, Capability, Request, ServiceCheck
from rdzv_plugins.kit import ElasticOptions, TlsOptions, validate_elastic
from rdzv_plugins.options import option

if TYPE_CHECKING:
    from rdzv_plugins.backends.etcd.coordination import EtcdCoordination
    from rdzv_plugins.backends.etcd.security import EtcdSecurity

_PORT = 2379
_SCHEMES = ("http", "https")


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
    from rdzv_plugins.backends.etcd.security import ACCOUNT, EtcdSecurity

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


def create(request: Request) -> EtcdCoordination:
    """The cluster as this node sees it; nothing is sent yet. Removes user and password from the environment."""
    from rdzv_plugins.backends.etcd.security import ACCOUNT

    cluster = _cluster(request)
    ACCOUNT.forget()
    return cluster


def _cluster(request: Request) -> EtcdCoordination:
    from rdzv_plugins.backends.etcd.coordination import EtcdCoordination

    members, security = request.target
    options: EtcdOptions = request.options
    return EtcdCoordination(
        members,
        request.run_id,
        security=security,
        prefix=options.prefix,
        outage_timeout=options.outage_timeout,
        whose=request.whose,
    )


def recognise(request: Request, timeout: float) -> str:
    """See ``Backend.recognise``; applies to one of the members."""
    from rdzv_plugins.backends.etcd.diagnosis import version_at

    members, _ = parse_members(request.endpoint)
    version = version_at(members[0], timeout)
    return f"etcd {version}" if version else ""


def preflight(request: Request, held: ExitStack) -> str:
    """Log in at a member that answers, and read one key."""
    from rdzv_plugins.elastic import keys
    from rdzv_plugins.elastic.observer import PATIENCE_S, with_job

    job = _cluster(request).peek(keys.JOB, timeout=PATIENCE_S)
    return f"etcd answers at {request.endpoint}, {with_job(request, 'etcd', job)}"


def health(request: Request, timeout: float) -> list[ServiceCheck]:
    """See ``Backend.health``. Covers the members that the endpoint names, and what they know about each other."""
    from rdzv_plugins.backends.etcd.looks import checks_of, look_at
    from rdzv_plugins.backends.etcd.space import Space
    from rdzv_plugins.elastic import keys

    members, security = request.target
    options: EtcdOptions = request.options
    return checks_of(look_at(members, security, Space(options.prefix, request.run_id).full(keys.JOB), timeout))


@hookimpl
def rdzv_register_backends() -> Backend:
    """Register the backend: the hook through which it is found."""
    return Backend(
        name="etcd",
        summary="elastic rendezvous (min:max nodes) on an etcd v3 cluster: no node of the job is special",
        create=create,
        capabilities=frozenset(
            {Capability.ELASTIC, Capability.NODE_RANK, Capability.NODE_REPLACEMENT, Capability.TOKEN}
        ),
        options=EtcdOptions,
        validate=validate,
        preflight=preflight,
        meets_at="service",
        recognise=recognise,
        health=health,
        install="pip install 'rdzv-plugins[etcd]'",
        imports=("grpc", "google.protobuf"),
    )
