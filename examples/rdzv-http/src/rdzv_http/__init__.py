"""``http``: elastic rendezvous on a small HTTP key-value server. Endpoint: ``HOST[:PORT]`` of it."""

from __future__ import annotations

from dataclasses import dataclass

from rdzv_plugins import Backend, Capability, CoordinationBackend, Request, hookimpl, option
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.kit import Account, ElasticOptions, Security, TlsOptions, validate_elastic

DEFAULT_PORT = 8700
ACCOUNT = Account("http")


@dataclass(frozen=True)
class HttpOptions(TlsOptions, ElasticOptions):
    """Our keys of --rdzv-conf, beside those of the elastic rendezvous."""

    tls: bool = option(False, help="The server speaks TLS, with a certificate that this machine trusts.")
    credentials: str | None = option(
        None, help="File with one line, user:password; unset: RDZV_HTTP_USER and RDZV_HTTP_PASSWORD, if set."
    )


def validate(request: Request) -> tuple[Endpoint, Security]:
    """Called before anything starts. What it returns is the ``target`` of the request that ``create`` gets."""
    validate_elastic(request)
    endpoint = parse_endpoint(request.endpoint, DEFAULT_PORT)
    if endpoint.port == 0:
        raise UsageError(
            f"--rdzv-endpoint={request.endpoint} is not where a server of backend 'http' is",
            remedy="Start one, python -m rdzv_http.server, and give --rdzv-endpoint=HOST:8700.",
        )
    options: HttpOptions = request.options
    asked = "https" if options.tls else ""
    return endpoint, options.security(ACCOUNT, options.credentials, ("http", "https"), asked)


def create(request: Request) -> CoordinationBackend:
    """Called once on every node; nothing is sent yet."""
    from rdzv_http.client import HttpClient
    from rdzv_plugins.kit import coordination_backend

    endpoint, security = request.target
    ACCOUNT.forget()
    options: HttpOptions = request.options
    return coordination_backend(
        "http",
        lambda: HttpClient(endpoint, request.run_id, security),
        outage_timeout=options.outage_timeout,
    )


@hookimpl
def rdzv_register_backends() -> Backend:
    """The hook through which rdzv-run finds the backend."""
    return Backend(
        name="http",
        summary="elastic rendezvous (min:max nodes) on a small HTTP server",
        create=create,
        capabilities=frozenset({Capability.ELASTIC, Capability.NODE_RANK, Capability.NODE_REPLACEMENT}),
        options=HttpOptions,
        validate=validate,
        meets_at="service",
    )
