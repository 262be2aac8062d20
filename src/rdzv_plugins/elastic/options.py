"""Options of every backend that runs on the elastic rendezvous, and what they reject; importable without torch.

Those of the backends that meet at a native store come last (``EndpointOptions``).
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Literal

from rdzv_plugins.endpoints import Endpoint, meeting_point, parse_endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.native.limits import StoreLimits
from rdzv_plugins.options import WorkerStoreOptions, option
from rdzv_plugins.rounds.settings_check import wanted
from rdzv_plugins.security.certificates import NodeTlsOptions, certificates_of
from rdzv_plugins.security.job_token import MOST_RUN_ID, token_of

_OF_TIERED = ("worker_transport", "answered_writes", "trunk_grace", "fanout")


@dataclass(frozen=True)
class ElasticOptions(WorkerStoreOptions):
    """How long to wait for whom, and who serves what."""

    store: Literal["torch", "parallel", "tiered"] = option(  # type: ignore[assignment]  # one more choice
        "parallel",
        help="Server of the workers' store: parallel, the native one; tiered, the same with a proxy on each node; "
        "or torch's own.",
    )
    worker_transport: Literal["loopback", "unix", "direct"] = option(
        "loopback",
        help="store=tiered: workers reach their node's proxy by loopback or a Unix socket; direct: they need none.",
    )
    answered_writes: bool = option(
        False,
        help="store=tiered: in workers, set, append, multi_set and queue_push of torch's Store return when the store "
        "has the value, not when it is sent.",
    )
    trunk_grace: float = option(
        5,
        help="store=tiered: time within which a proxy restores a broken connection to the store.",
        unit="s",
        minimum=0.5,
        maximum=60,
    )
    fanout: int = option(
        0,
        help="store=tiered: this many proxies connect to the store, the others to these, on worker_ports; "
        "0: all connect to the store.",
        minimum=0,
    )
    timeout: float | None = option(
        None, help="Time within which a round has to complete; 600 when unset.", unit="s", minimum=1
    )
    join_timeout: float | None = option(
        None, help="The same as timeout, by the name that c10d uses.", unit="s", minimum=1
    )
    last_call_timeout: float = option(
        30, help="In a first round, how long to wait for more nodes once the minimum has joined.", unit="s", minimum=0
    )
    ttl: float = option(
        10, help="A node that is not heard from for this long is lost.", unit="s", minimum=0.5, maximum=3600
    )
    reach_timeout: float = option(
        15, help="Time within which a node has to reach the workers' store; at least ttl + 1.", unit="s", minimum=0.1
    )
    rejoin_timeout: float = option(
        60,
        help="After a round is over, how long the others wait for a node that is alive but does not rejoin.",
        unit="s",
        minimum=1,
    )
    outage_timeout: float = option(
        60,
        help="How long this node goes on while the rendezvous does not answer or accepts no writes.",
        unit="s",
        minimum=1,
    )
    read_timeout: float = option(60, help="Limit of one read of the agents' store.", unit="s", minimum=1)
    linger: float = option(
        5,
        help="Once nobody is working, how long a node that serves others waits for them to leave.",
        unit="s",
        minimum=0,
    )
    same_command: Literal["arguments", "script", "no"] = option(
        "arguments",
        help="What the commands of all nodes must share: script and arguments, the script alone, or nothing.",
    )
    token_file: str | None = option(
        None, help="File with the job's token, or with two during a change; unset: RDZV_TOKEN_FILE, or RDZV_TOKEN."
    )
    node_unit: int = option(
        1,
        help="A round has a multiple of this many nodes; MIN and MAX of --nnodes have to be multiples, too.",
        minimum=1,
    )
    domain: str | None = option(
        None,
        help="The switch or rack that this node shares with those near it: their ranks are consecutive, and "
        "they replace each other. Unset: RDZV_DOMAIN, or what a scheduler says about its network.",
    )
    min_per_domain: int = option(
        1, help="A domain with fewer nodes than this is left out of a round as a whole.", minimum=1
    )
    preflight_factor: float = option(
        3,
        help="--preflight: a node is slow if it is worse than usual by more than this factor.",
        unit="times",
        minimum=1.5,
    )
    allow_same_host: bool = option(
        False, help="Do not warn about two agents on one machine: they are meant to be two nodes."
    )

    @property
    def join_seconds(self) -> float:
        """The time-out that applies to a round, in seconds."""
        return self.join_timeout or self.timeout or 600.0


def validate_elastic(request: Request) -> None:
    """Reject what no elastic backend accepts, before anything starts. Raises ``UsageError``."""
    if isinstance(request.options, ElasticOptions):
        _validate_tiers(request.options)
        _validate_shape(request, request.options)
        domain_of(request)
        closed_by = "the job's token" if token_of(request) is not None else ""
        if certificates_of(request) is not None:
            closed_by = f"{closed_by} and TLS" if closed_by else "TLS"
        if closed_by:
            _validate_closed(request, request.options, closed_by)
    if request.node_rank is not None and not 0 <= request.node_rank < request.max_nodes:
        raise UsageError(
            f"--node-rank={request.node_rank} is out of range for {request.max_nodes} node(s)",
            remedy=f"Node ranks go from 0 to {request.max_nodes - 1}.",
        )


def with_token(request: Request, options: ElasticOptions) -> ElasticOptions:
    """With a token or TLS, workers have proxies, unless the job chose another store. Raises as ``token_of`` does."""
    asked = dataclasses.replace(request, options=options)
    if "store" in request.conf or options.store == "tiered":
        return options
    if token_of(asked) is None and certificates_of(asked) is None:
        return options
    return dataclasses.replace(options, store="tiered")


def _validate_closed(request: Request, options: ElasticOptions, by: str) -> None:
    if options.store != "tiered" and (request.max_nodes > 1 or options.store == "torch"):
        raise UsageError(
            f"--rdzv-conf: store={options.store} contradicts {by}: torch's client in the workers "
            "supports neither tokens nor TLS, so the store itself would have to be open to everyone",
            remedy="Leave store out, or use store=tiered: each node's proxy then authenticates itself, and admits only "
            "this user's workers.",
        )
    if len(request.run_id.encode()) > MOST_RUN_ID:
        raise UsageError(
            f"--rdzv-id has {len(request.run_id.encode())} bytes; with a token at most {MOST_RUN_ID} are allowed",
            remedy="Choose a shorter one.",
        )
    if options.worker_transport == "direct":
        raise UsageError(
            f"--rdzv-conf: worker_transport=direct contradicts {by}: without proxies nothing authenticates the workers",
            remedy="Leave it out.",
        )


def _validate_shape(request: Request, options: ElasticOptions) -> None:
    unit, least = options.node_unit, options.min_per_domain
    bounds = {"MIN": request.min_nodes, "MAX": request.max_nodes}
    odd = {name: value for name, value in bounds.items() if value % unit}
    if odd:
        given = wanted(request.min_nodes, request.max_nodes)
        if request.min_nodes == request.max_nodes:
            odd = {"": request.max_nodes}
        nearest = (f"{f'for {name} ' if name else ''}{_nearest(value, unit)}" for name, value in odd.items())
        raise UsageError(
            f"--nnodes={given} contradicts --rdzv-conf node_unit={unit}: the number of a round's nodes has to be a "
            f"multiple of {unit}, which {' and '.join(map(str, odd.values()))} {'is' if len(odd) == 1 else 'are'} not",
            remedy=f"The nearest are {', '.join(nearest)}.",
        )
    if least > request.max_nodes:
        raise UsageError(
            f"--rdzv-conf min_per_domain={least} is more than the {request.max_nodes} node(s) of --nnodes: no domain "
            "could ever take part",
            remedy=f"Use at most {request.max_nodes}.",
        )


def _nearest(value: int, unit: int) -> str:
    below = value - value % unit
    return f"{below} and {below + unit}" if below else str(unit)


def _validate_tiers(options: ElasticOptions) -> None:
    if options.store != "tiered":
        for each in dataclasses.fields(ElasticOptions):
            if each.name in _OF_TIERED and getattr(options, each.name) != each.default:
                raise UsageError(
                    f"--rdzv-conf: {each.name}={getattr(options, each.name)} is for store=tiered, but store is "
                    f"{options.store}",
                    remedy="Write --rdzv-conf store=tiered, or leave it out.",
                )
    for name, asked in (("answered_writes", options.answered_writes), ("fanout", options.fanout)):
        if asked and options.worker_transport == "direct":
            raise UsageError(
                f"--rdzv-conf: {name}={asked} contradicts worker_transport=direct: there are no proxies then",
                remedy="Keep one of them.",
            )
    if not options.fanout:
        return
    if options.worker_ports.first == options.worker_ports.last != 0:
        raise UsageError(
            f"--rdzv-conf: fanout={options.fanout} needs more ports than worker_ports={options.worker_ports}: rank 0's "
            "node serves the store and other proxies",
            remedy="Give a range, for example worker_ports=29501-29510.",
        )


DOMAIN_VARIABLE = "RDZV_DOMAIN"
"""The variable for a domain, where that is easier to set than a flag: in a pod, it can come from a label."""
_LONGEST_DOMAIN = 128


def domain_of(request: Request) -> str:
    """Return the option ``domain``, else RDZV_DOMAIN, else what a scheduler's plug-in knows; empty if none is given.

    Raises ``UsageError`` for a value that cannot be displayed or is too long.
    """
    option = request.options.domain if isinstance(request.options, ElasticOptions) else None
    said = {
        "--rdzv-conf domain": option or "",
        DOMAIN_VARIABLE: os.environ.get(DOMAIN_VARIABLE, ""),
        "the scheduler": request.domain,
    }
    source, domain = next(((source, name.strip()) for source, name in said.items() if name.strip()), ("", ""))
    if len(domain) > _LONGEST_DOMAIN or not domain.isprintable():
        raise UsageError(
            f"the domain of this node, {domain[:40]!a} of {source}, is too long or has characters that cannot be "
            "printed",
            remedy=f"Use at most {_LONGEST_DOMAIN} printable characters.",
        )
    return domain


DEFAULT_PORT = 29500
MOST_ENDPOINTS = 7


@dataclass(frozen=True)
class EndpointOptions(StoreLimits, NodeTlsOptions, ElasticOptions):
    """Options of every elastic backend, plus who serves the endpoint, TLS between nodes, and limits of what is served.

    The limits are those of the endpoint, the workers' store and this node's proxy; each applies where this node has it.
    """

    is_host: bool | None = option(
        None, help="Whether this node serves the endpoint; unset: if the endpoint's address can be bound here."
    )


def meeting_endpoints(request: Request) -> Endpoint | tuple[Endpoint, ...]:
    """Like ``meeting_point``, but accepts several, separated by commas; one serves at a time, the others stand by."""
    return parse_endpoints(request.endpoint) if "," in request.endpoint else meeting_point(request, DEFAULT_PORT)


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Parse several endpoints. Raises ``UsageError``, also for more than ``MOST_ENDPOINTS``, a duplicate, or port 0."""
    found = tuple(parse_endpoint(part, DEFAULT_PORT) for part in text.split(","))
    if len(found) > MOST_ENDPOINTS:
        raise UsageError(
            f"--rdzv-endpoint: {len(found)} endpoints are too many: at most {MOST_ENDPOINTS}",
            remedy="Three are enough to survive the loss of any machine, five that of two at a time.",
        )
    for each in found:
        if found.count(each) > 1:
            raise UsageError(f"--rdzv-endpoint: {each} is given twice", remedy="Give each endpoint once.")
        if each.port == 0:
            raise UsageError(
                f"--rdzv-endpoint: port 0 of {each.host} works for one node and one endpoint only",
                remedy="Choose a port, the same on every node.",
            )
    return found


def endpoints_of(request: Request) -> tuple[Endpoint, ...]:
    """The endpoints where the nodes of ``request`` can meet if there are several; otherwise empty."""
    found = request.target
    several = isinstance(found, tuple) and all(isinstance(each, Endpoint) for each in found)
    return found if several else ()


def validate_endpoint(request: Request) -> Endpoint | tuple[Endpoint, ...]:
    """Reject what cannot work, before anything starts. Returns where the nodes meet. Raises ``UsageError``."""
    validate_elastic(request)
    if (certificates := certificates_of(request)) is not None:
        certificates.check()
    if isinstance(request.options, EndpointOptions):
        _validate_limits(request, request.options)
    found = meeting_endpoints(request)
    if isinstance(found, tuple) and isinstance(request.options, EndpointOptions) and request.options.is_host:
        raise UsageError(
            f"--rdzv-conf: is_host=true does not say which of {len(found)} endpoints this node should serve",
            remedy="Leave it out: a node serves the endpoint whose address is its own. is_host=false serves none.",
        )
    return found


def _validate_limits(request: Request, options: EndpointOptions) -> None:
    for name in ("sessions", "run_sessions"):
        if (most := getattr(options, name)) < request.max_nodes:
            raise UsageError(
                f"--rdzv-conf: {name}={most} is fewer than the {request.max_nodes} nodes of --nnodes, each of which "
                "has a session at the endpoint",
                remedy="Use more: rdzv status and rdzv top each need one, too, while they run.",
            )
