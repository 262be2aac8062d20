"""Jobs whose workers' store is ``tiered``, by each elastic backend, and what the store at the root knows of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from kits.eventually import eventually
from kits.launcher.elastic_kit import Job, Meeting, outputs
from kits.launcher.harness import Agent
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.kvstore.native.framing import ask_statistics


def tiered(meeting: Meeting, nnodes: object, *, conf: str = "", **options: Any) -> Job:
    """A job of the backend; ``store=tiered`` is said where it is not the default."""
    store = [] if meeting.backend == "tiered" else ["store=tiered"]
    # -v: each node says where its proxy and the store are
    return Job(meeting, nnodes, conf=",".join([*store, *filter(None, [conf])]), flags=["-v"], **options)


def root_of(agents: Sequence[Agent]) -> Endpoint:
    """Where the newest store is, as its own node says."""

    def said() -> list[str]:
        return [each for agent in agents for each in re.findall(r"the workers' store is at (\S+) \(who", agent.text)]

    found = eventually(said, lambda: outputs(agents))
    return parse_endpoint(found[-1], None)


def keyspace(root: Endpoint) -> dict[str, Any]:
    """What the root says of the round's store, which is the only one there."""
    (found,) = ask_statistics(root, 30)["keyspaces"]
    assert found["port"] == root.port
    return dict(found)


def clients(root: Endpoint) -> int:
    """Connections to the round's store, less that of the question."""
    return int(keyspace(root)["connections"]) - 1


def wait_clients(root: Endpoint, count: int) -> None:
    """Until there are so many: the store may not have heard yet that a question before this one has gone."""
    eventually(lambda: clients(root) == count, lambda: f"not {count} clients: {keyspace(root)}")


def trunks(root: Endpoint, count: int, workers: int, proxies: int) -> list[dict[str, Any]]:
    """The trunks, in order of their names, once there are ``count``.

    And once ``proxies`` have reported that in all ``workers`` are connected.
    """

    def told() -> list[dict[str, Any]] | None:
        there = sorted(keyspace(root)["trunks"], key=lambda trunk: str(trunk["name"]))
        said = [report for trunk in there for report in reports(trunk)]
        whole = len(there) == count and len(said) == proxies and sum(map(below, there)) >= workers
        return there if whole else None

    found: list[dict[str, Any]] = eventually(told, lambda: f"not {workers} workers: {keyspace(root)['trunks']}")
    return found


def below(trunk: dict[str, Any]) -> int:
    """How many connections of workers (and agents) there are below a trunk."""
    return sum(report["workers"] for report in reports(trunk))


def reports(trunk: dict[str, Any]) -> list[dict[str, Any]]:
    """What the proxy says of itself, and those below it."""

    def walk(report: dict[str, Any]) -> list[dict[str, Any]]:
        return [report, *(each for child in report.get("children", ()) for each in walk(child))]

    return walk(trunk["report"]) if trunk.get("report") else []
