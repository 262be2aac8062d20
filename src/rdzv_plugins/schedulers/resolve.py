"""From what a scheduler says to fields of a ``Request``: which are missing, and which contradict each other.

Every plug-in of this package hands its reader to ``hook_of``. A flag wins over a scheduler. A launch whose flags say
how many nodes there are and where they meet has described itself, and nothing is read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from typing import Any

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.hookspecs import hookimpl
from rdzv_plugins.interfaces import Backend, Capability, Request
from rdzv_plugins.schedulers.facts import Fact, Facts, Variables, launchers, port_of_name

logger = logging.getLogger(__name__)

_PLACES = 3
"""How many endpoints, and nodes for them, it takes to survive the loss of any one.

One of two is not more than half.
"""

Reader = Callable[[Variables, bool], Facts | None]
"""Reads the environment; the second argument tells whether a flag has set the number of nodes to more than one.

Returns None if this process is on its own. Raises ``UsageError`` for a variable that is not as documented.
"""


def hook_of(plugin: str, read: Reader) -> Callable[..., dict[str, Any] | None]:
    """The hook ``rdzv_resolve_request`` of the plug-in of that name."""

    @hookimpl(trylast=True)
    def rdzv_resolve_request(request: Request, backend: Backend | None) -> dict[str, Any] | None:
        """The fields that the scheduler knows and no flag has set. Raises ``UsageError``."""
        found = launchers(os.environ)
        meets_at = "" if backend is None else backend.meets_at
        if found[:1] != [plugin] or _describes_itself(request, meets_at):
            return None
        if others := found[1:]:
            logger.debug("plug-in %s reads what the innermost launcher says; not used: %s", plugin, ", ".join(others))
        facts = read(Variables(os.environ, plugin), "max_nodes" in request.given)
        if facts is None:
            return None
        if facts.idle:
            return {"idle": facts.idle}
        capabilities = backend.capabilities if backend is not None else ()
        return _filled_in(plugin, facts, request, meets_at, capabilities) or None

    return rdzv_resolve_request


def _describes_itself(request: Request, meets_at: str) -> bool:
    """True if flags say all that makes it a job: one node, or how many and where.

    The endpoint of a service does not identify a job; there the run id does.
    """
    if "max_nodes" not in request.given:
        return False
    where = "run_id" if meets_at == "service" else "endpoint"
    return request.max_nodes == 1 or where in request.given


def _filled_in(
    plugin: str, facts: Facts, request: Request, meets_at: str, capabilities: Collection[Capability]
) -> dict[str, Any]:
    """Fields with their values."""
    answer: dict[str, Any] = {}

    def take(field: str, flag: str, fact: Fact[Any] | None) -> None:
        if fact is not None and field not in request.given:
            answer[field] = fact.value
            logger.debug("--%s=%s from %s (plug-in %s)", flag, fact.value, fact.source, plugin)

    _refuse_contradictions(facts, request)
    take("max_nodes", "nnodes", facts.nodes)
    if "max_nodes" in answer:
        answer["min_nodes"] = answer["max_nodes"]
    nodes = answer.get("max_nodes", request.max_nodes)
    if facts.run_id_lasts or meets_at != "service":
        take("run_id", "rdzv-id", facts.run_id)
    take("nproc_per_node", "nproc-per-node", facts.workers)
    if nodes > 1:
        if Capability.NODE_RANK in capabilities and not _some_are_spares(facts, nodes):
            take("node_rank", "node-rank", facts.node_rank)
            if "node_rank" in answer:
                answer["rank_moves"] = True
        take("domain", "rdzv-conf domain", facts.domain)
        if meets_at == "node" and "endpoint" not in request.given:
            least = answer.get("min_nodes", request.min_nodes)
            several = Capability.SEVERAL_ENDPOINTS in capabilities and _goes_on_without_the_first(facts, nodes, least)
            take("endpoint", "rdzv-endpoint", _endpoint(facts, answer.get("run_id", request.run_id), nodes, several))
    return answer


def _goes_on_without_the_first(facts: Facts, nodes: int, least: int) -> bool:
    """True if a job that needs ``least`` nodes can go on at another meeting place: there are enough, or will be.

    If there are not, meeting elsewhere would mean waiting for a node that never comes, where a requeue would help.
    """
    started = facts.nodes.value if facts.nodes is not None else nodes
    return min(started, nodes) >= _PLACES and (facts.replaced or least < started)


def _some_are_spares(facts: Facts, nodes: int) -> bool:
    """True if more nodes were started than the job has room for; their ranks do not decide which are spares."""
    if facts.nodes is not None:
        return facts.nodes.value > nodes
    return facts.node_rank is not None and facts.node_rank.value >= nodes


def _endpoint(facts: Facts, run_id: str, nodes: int, several: bool) -> Fact[str]:
    hosts = facts.hosts(_PLACES)
    if hosts is None:
        raise UsageError(
            f"{facts.launcher} does not say on which host the first of these {nodes} nodes is, where all could meet",
            remedy="Give --rdzv-endpoint=HOST:PORT, the same on every node.",
        )
    port = facts.port or port_of_name(run_id)
    found = tuple(dict.fromkeys(hosts.value))  # if nodes share a host, two places there are one
    places = found if several and len(found) >= _PLACES else found[:1]
    text = ",".join(str(Endpoint(host, port.value)) for host in places)
    return Fact(text, f"{hosts.source}, the port from {port.source}")


def _refuse_contradictions(facts: Facts, request: Request) -> None:
    """Refuse a flag and a variable that cannot both be right. Raises ``UsageError``.

    If there are to be more nodes than were started here, the rest may come from elsewhere, which is logged; if fewer,
    the surplus ones are spares.
    """
    if facts.nodes is None:
        return
    if "max_nodes" not in request.given:
        if "node_rank" in request.given and (request.node_rank or 0) >= facts.nodes.value:
            raise UsageError(
                f"--node-rank={request.node_rank} contradicts {facts.nodes}: node ranks go from 0 to "
                f"{facts.nodes.value - 1}",
                remedy=f"Leave it out: {facts.launcher} knows it. Or say how many nodes there are: --nnodes.",
            )
    elif request.min_nodes > facts.nodes.value:
        logger.warning(
            "--nnodes asks for %d nodes, and %s has started this command on %d (%s): the others have to come from "
            "elsewhere",
            request.min_nodes,
            facts.launcher,
            facts.nodes.value,
            facts.nodes,
        )
