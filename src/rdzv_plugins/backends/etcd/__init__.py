"""``etcd``: elastic rendezvous on an etcd v3 cluster, so that no training node is special.

Features: those of ``parallel``, and the loss of any node, the first included, costs one re-rendezvous.
Endpoint: the members, ``HOST[:PORT],HOST[:PORT]``, port 2379 when left out. Needs ``rdzv-plugins[etcd]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rdzv_plugins.backends.etcd.members import parse_members
from rdzv_plugins.backends.etcd.security import Security, credentials, forget_password
from rdzv_plugins.elastic.elastic_options import ElasticOptions
from rdzv_plugins.elastic.elastic_options import validate as validate_elastic
from rdzv_plugins.errors import UsageError
from rdzv_plugins.hookspecs import hookimpl
from rdzv_plugins.interfaces import Backend, Capability, Request
from rdzv_plugins.options import option

if TYPE_CHECKING:
    from rdzv_plugins.backends.etcd.coordination import EtcdCoordination


@dataclass(frozen=True)
class EtcdOptions(ElasticOptions):
    """Those of every elastic backend, and how to talk to etcd."""

    ttl: float = option(
        10, help="A node that is not heard of for this long is lost; whole seconds.", unit="s", minimum=2, maximum=3600
    )
    prefix: str = option("/rdzv-plugins", help="All keys begin with this.")
    protocol: Literal["http", "https"] | None = option(
        None, help="https: TLS. Unset: as in the endpoint, and https where cacert or cert is given."
    )
    cacert: str | None = option(
        None, help="File with the certificates of the authorities to trust; unset: the system's."
    )
    cert: str | None = option(None, help="File with this client's certificate; needs key.")
    key: str | None = option(None, help="File with the private key of cert.")
    credentials: str | None = option(
        None, help="File with one line, user:password; unset: RDZV_ETCD_USER and RDZV_ETCD_PASSWORD, if set."
    )
    outage_timeout: float = option(
        60, help="How long this node goes on while no member of etcd answers.", unit="s", minimum=1
    )


def validate(request: Request) -> None:
    """Refuse what cannot work, before anything starts."""
    validate_elastic(request)
    if request.endpoint == "localhost:0":
        raise UsageError(
            "--standalone needs no etcd: a single node has nobody to meet",
            remedy="Leave out --standalone, or --rdzv-backend=etcd.",
        )
    parse_members(request.endpoint)
    security_of(request)


def security_of(request: Request) -> Security:
    """TLS and user as the request has them. Raises ``UsageError`` for contradictions, and files that cannot be read."""
    options: EtcdOptions = request.options
    _, scheme = parse_members(request.endpoint)
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
    user, password = credentials(options.credentials)
    return Security(scheme == "https", options.cacert, options.cert, options.key, user, password)


def create(request: Request) -> EtcdCoordination:
    """The cluster as this node sees it; nothing is sent yet. Takes user and password out of the environment."""
    from rdzv_plugins.backends.etcd.coordination import EtcdCoordination

    members, _ = parse_members(request.endpoint)
    options: EtcdOptions = request.options
    security = security_of(request)
    forget_password()
    return EtcdCoordination(
        members,
        request.run_id,
        security=security,
        prefix=options.prefix,
        outage_timeout=options.outage_timeout,
    )


@hookimpl
def rdzv_register_backends() -> Backend:
    """The hook through which it is found."""
    return Backend(
        name="etcd",
        summary="elastic rendezvous (min:max nodes) on an etcd v3 cluster: no node of the job is special",
        create=create,
        capabilities=frozenset({Capability.ELASTIC, Capability.NODE_RANK, Capability.NODE_REPLACEMENT}),
        options=EtcdOptions,
        validate=validate,
        install="pip install 'rdzv-plugins[etcd]'",
    )
