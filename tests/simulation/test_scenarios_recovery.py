"""How soon the others go on without a node, by what happens to it: a table that elastic-rendezvous.md has, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulation import troubles
from simulation.test_scenarios_elastic import LONG, SEEDS, at_work
from simulation.world import TTL_S, Node, World

PAGE = Path(__file__).parents[2] / "docs/internals/rendezvous.md"
SERVICES: dict[str, dict[str, Any]] = {
    "`parallel`, `tiered`": {"by_connection": True},
    "`etcd`": {"by_connection": False},
    "several endpoints": {"places": 2},
    "several endpoints: the node that serves": {"places": 2},
}
CAUSES: dict[str, troubles.ToNode] = {
    "it is told to leave": troubles.leave,
    "its agent is killed": troubles.kill,
    "it stands still": lambda world, node: troubles.freeze(world, node, 200.0),
    "it is cut off": lambda world, node: troubles.isolate(world, [node], 200.0),
    "its host is gone": troubles.crash,
}
SECONDS = {"1": 1.0, "2": 2.0, "ttl + 1": TTL_S + 1.0, "4/3 ttl + 3": TTL_S * 4 / 3 + 3.0}
SILENT = ("ttl + 1", "ttl + 1", "ttl + 1", "4/3 ttl + 3")
WITHIN = {
    "it is told to leave": ("1", "1", "1", "2"),
    "its agent is killed": ("2", "2", "2", "2"),
    "it stands still": SILENT,
    "it is cut off": SILENT,
    "its host is gone": SILENT,
}
"""Seconds at the most, by cause and service, as the page says them."""


def test_the_documents_say_how_soon_the_others_go_on() -> None:
    rows = [("what happens to a node", *SERVICES), ("---",) * (1 + len(SERVICES))]
    rows += [(cause, *each) for cause, each in WITHIN.items()]
    table = [f"| {' | '.join(row)} |".replace("| --- ", "|---").replace("--- |", "---|") for row in rows]
    assert "\n".join(table) in PAGE.read_text()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize(("service", "leads"), [(each, False) for each in SERVICES] + [("`etcd`", True)])
def test_the_others_go_on_as_soon_as_the_documents_say(service: str, leads: bool, cause: str, seed: int) -> None:
    world = World(seed, 4, 2, 4, LONG, **SERVICES[service])
    at_work(world)
    world.after(5.0)
    lost = _one_of(world, leads or service.endswith("serves"))
    lost.hindered, struck_at = True, world.now
    CAUSES[cause](world, lost)
    world.goes_on_without(lost)
    assert world.now - struck_at <= SECONDS[WITHIN[cause][list(SERVICES).index(service)]]
    world.scheduler.close()


def _one_of(world: World, serves: bool) -> Node:
    """That serves the others, or leads them, or one that does not."""
    if world.has_places:
        return next(each for each in world.nodes if (each is world.server) is serves)
    return next(each for each in world.nodes if (each is world.leader) is serves)
