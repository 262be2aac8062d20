"""What tests with nodes ask of the backend under test and of its nodes."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Sequence
from typing import Any

from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.harness import Harness
from rdzv_plugins.testing.nodes.job import Node, NodesJob, eventually
from rdzv_plugins.testing.suite.theme import Theme

_REST_S = 0.4


class NodeTheme(Theme):
    """A theme whose tests have nodes."""

    def elastic(self, harness: Harness) -> bool:
        """Whether nodes may come and go."""
        return self.declares(harness, Capability.ELASTIC)

    def accepts(self, harness: Harness, key: str) -> bool:
        """Whether the backend has that option."""
        options: Any = self.entry(harness).backend.options
        return options is not None and key in {each.name for each in dataclasses.fields(options)}

    def conf(self, harness: Harness, **wanted: object) -> dict[str, str]:
        """``--rdzv-conf`` with those of the options that the backend has."""
        return {key: str(value) for key, value in wanted.items() if self.accepts(harness, key)}

    def join_timeout(self, harness: Harness, seconds: float) -> dict[str, str]:
        """``--rdzv-conf`` with the time within which a round has to be complete, if the backend has that option."""
        return self.conf(harness, timeout=seconds, join_timeout=seconds)

    @staticmethod
    def others_than(host: Node | None, nodes: Sequence[Node]) -> list[Node]:
        """The nodes except the one that may not go."""
        return [node for node in nodes if node is not host]

    def host_of(self, harness: Harness, nodes: Sequence[Node]) -> Node | None:
        """The node with which the endpoint would go; None if there is no such node. The nodes have joined."""
        hosts = [node for node in nodes if self.serves(harness, node)]
        assert len(hosts) <= 1, f"one node at most serves the endpoint, not {', '.join(map(str, hosts))}"
        return hosts[0] if hosts else None

    def serves(self, harness: Harness, node: Node) -> bool:
        """Whether the endpoint would go with this node: as its backend says, or as node rank 0 of a static one."""
        said = node.hosts()
        return node.request.node_rank == 0 and harness.service is None if said is None else said

    @staticmethod
    def says(node: Node, pattern: str) -> None:
        """Assert that the pattern comes to match in a node's output."""
        eventually(lambda: re.search(pattern, node.log), f"{node} says {pattern!r}")

    def waiting_node(self, job: NodesJob, **fields: Any) -> Node:
        """One more node, which waits in the rendezvous, so that the others can know of it."""
        node = job.node(**fields)
        node.join()
        eventually(lambda: self.registered(node), f"{node} waits in the rendezvous")
        return node

    @staticmethod
    def registered(node: Node) -> bool:
        """Whether a node's join has got so far that the others can know of it, by what it has written and sent."""
        if "joining at" not in node.log:
            return False
        written = node.has_written()
        if written is not None:
            return written
        sent = node.traffic()  # a handler of its own: it has come to rest
        time.sleep(_REST_S)
        return node.traffic() == sent
