"""``redis``: elastic rendezvous of rdzv-plugins on a Redis, so that no training node is special.

Endpoint: ``HOST[:PORT]`` of one Redis, port 6379 when left out; ``redis://`` or, for TLS, ``rediss://`` may stand in
front. Loading this module imports neither redis-py nor torch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple

from rdzv_plugins import Backend, Capability, CoordinationBackend, Request, hookimpl, option
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.kit import Account, ElasticOptions, Security, TlsOptions, parse_address, validate_elastic

logger = logging.getLogger(__name__)

ACCOUNT = Account("redis", default_user="default")
"""``default`` is Redis' own name for whoever gives a password alone (``requirepass``)."""
_PORT = 6379
_SCHEMES = "redis", "rediss"


@dataclass(frozen=True)
class RedisOptions(TlsOptions, ElasticOptions):
    """Those of every elastic backend, and how to talk to Redis."""

    prefix: str = option("rdzv-plugins", help="The names of all keys in Redis begin with this.")
    db: int | None = option(None, help="Number of the database; 0 when unset.", minimum=0)
    credentials: str | None = option(
        None, help="File with one line, user:password; unset: RDZV_REDIS_USER and RDZV_REDIS_PASSWORD, if set."
    )
    outage_timeout: float = option(
        60, help="How long this node goes on while Redis does not answer; ttl, if that is more.", unit="s", minimum=1
    )


class Target(NamedTuple):
    """One Redis, and the number of a database there."""

    endpoint: Endpoint
    db: int = 0


def parse_target(text: str, db: int | None) -> tuple[str, Target]:
    """``HOST[:PORT]`` or ``redis[s]://HOST[:PORT][/DB]``: the scheme, empty if none is given, and what is there.

    ``db`` is that of --rdzv-conf. Raises ``UsageError`` for anything else, and if the two differ.
    """
    if not text.strip():
        raise UsageError(
            "backend 'redis' needs to know where Redis is",
            remedy="Give --rdzv-endpoint=HOST:6379, the same everywhere.",
        )
    if "," in text and "@" not in text:  # what it says about a password in the address comes first
        raise UsageError(
            f"--rdzv-endpoint: {text!r} names several hosts, but backend 'redis' uses one Redis",
            remedy="Name one. Clusters and sentinels are not supported; a name or an address may move to another host.",
        )
    scheme, endpoint, number = parse_address(text, _PORT, _SCHEMES, has_path=True)
    if number and not number.isdecimal():
        raise UsageError(
            f"--rdzv-endpoint: /{number} is not the number of a database", remedy="Write redis://HOST:PORT/0."
        )
    if number and db is not None and db != int(number):
        raise UsageError(
            f"--rdzv-endpoint ends in /{number}, which contradicts --rdzv-conf db={db}", remedy="Give only one of them."
        )
    return scheme, Target(endpoint, int(number or db or 0))


def validate(request: Request) -> tuple[Target, Security]:
    """Refuse what cannot work, before anything starts; returns where Redis is, and how to talk to it.

    Raises ``UsageError``.
    """
    validate_elastic(request)
    scheme, target = parse_target(request.endpoint, request.options.db)
    return target, request.options.security(ACCOUNT, request.options.credentials, _SCHEMES, scheme)


def create(request: Request) -> CoordinationBackend:
    """Redis as this node sees it; nothing is sent yet. Takes user and password out of the environment."""
    from rdzv_plugins.kit import coordination_backend

    from rdzv_redis.client import RedisClient, Space

    options: RedisOptions = request.options
    target, security = request.target
    ACCOUNT.forget()
    if security.password and not security.tls and not target.endpoint.is_loopback:
        logger.warning(
            "the password of %s goes to %s in the clear, and can be read on the way: write rediss:// for TLS",
            security.who,
            target.endpoint,
        )
    space, outage = Space(options.prefix, request.run_id), options.outage_timeout
    return coordination_backend("redis", lambda: RedisClient(target, security, space, outage), outage_timeout=outage)


@hookimpl
def rdzv_register_backends() -> Backend:
    """The hook through which it is found."""
    return Backend(
        name="redis",
        summary="elastic rendezvous (min:max nodes) on a Redis: no node of the job is special",
        create=create,
        capabilities=frozenset({Capability.ELASTIC, Capability.NODE_RANK, Capability.NODE_REPLACEMENT}),
        options=RedisOptions,
        validate=validate,
        meets_at="service",
        install="pip install rdzv-redis",
        imports=("redis",),
    )
