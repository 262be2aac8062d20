"""``etcd``: elastic rendezvous on an etcd v3 cluster, so that no training node is special.

Features: those of ``parallel``, and the loss of any node, the first included, costs one re-rendezvous.
Endpoint: the members, ``HOST[:PORT],HOST[:PORT]``, port 2379 when left out. Needs ``rdzv-plugins[etcd]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rdzv_plugins.backends import later
from rdzv_plugins.hookspecs import hookimpl
from rdzv_plugins.interfaces import Backend, Capability
from rdzv_plugins.kit import ElasticOptions, TlsOptions
from rdzv_plugins.options import option


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
        validate=later(f"{__name__}.target", "validate"),
        preflight=later(f"{__name__}.coordination", "preflight"),
        meets_at="service",
        recognise=later(f"{__name__}.diagnosis", "recognise"),
        health=later(f"{__name__}.looks", "health"),
        install="pip install 'rdzv-plugins[etcd]'",
        imports=("grpc", "google.protobuf"),
    )
