"""Nodes of a job, each a process of its own, told what to do step by step.

A ``NodesJob`` hands out ``Node`` objects. Their processes are forked from one that has imported torch already, so a
node costs milliseconds. Calls of a node's methods wait for the answer, at most ``PATIENCE_S`` seconds; those that end
in ``_later``, and ``join``, return a ``Pending`` at once::

    with NodesJob(harness, tmp_path, "2:3", conf={"ttl": "2"}) as job:
        first, second = job.start(2)
        first.store("set", "key", "value")
        assert second.store("get", "key") == b"value"
        second.kill()
        first.await_change()
        joining = first.join()
        ...
"""

from __future__ import annotations

import contextlib
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.harness import Harness
from rdzv_plugins.testing.installed import entry
from rdzv_plugins.testing.nodes.answers import PATIENCE_S, Joined, Pending
from rdzv_plugins.testing.nodes.handle import Node
from rdzv_plugins.testing.nodes.messages import NodeError

_AGAIN_S = 0.05
_LOG_TAIL = 6000
"""How many characters of each node's output a message has."""

__all__ = [
    "PATIENCE_S",
    "Joined",
    "Node",
    "NodeError",
    "NodesJob",
    "Pending",
    "eventually",
    "in_round",
    "one_world",
    "rank_of",
    "together",
]


class NodesJob:
    """Nodes of one run of the backend under test. A context manager: at its end all their processes are gone.

    ``directory`` is for their output and the endpoint. ``fields`` are those of every node's ``Request``; ``conf`` is
    added to the harness's. The run has an id of its own if none is given, and an endpoint of its own.
    """

    def __init__(self, harness: Harness, directory: Path, nnodes: str = "2", **fields: Any) -> None:
        low, _, high = nnodes.partition(":")
        self.harness = harness
        self.directory = Path(tempfile.mkdtemp(prefix="job-", dir=directory))
        self.nodes: list[Node] = []
        """All of them, including those that have ended."""
        self._fields: dict[str, Any] = {
            "run_id": f"run-{uuid.uuid4().hex[:8]}",
            "min_nodes": int(low),
            "max_nodes": int(high or low),
        }
        self._fields.update(fields)
        if "endpoint" not in fields:
            empty = self.directory / "endpoint"
            empty.mkdir()
            self._fields["endpoint"] = harness.endpoint(empty)

    @property
    def run_id(self) -> str:
        return cast(str, self._fields["run_id"])

    @property
    def endpoint(self) -> str:
        return cast(str, self._fields["endpoint"])

    def __enter__(self) -> NodesJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, AssertionError) and "--- node " not in str(error):
            error.args = (f"{error}\n{self.logs()}",)
        elif error is not None:
            print(self.logs())  # pytest shows it with the failure
        with contextlib.ExitStack() as ending:  # all of them, even if the end of one fails
            for node in reversed(self.nodes):
                ending.callback(node.close)

    def node(self, **changes: Any) -> Node:
        """Start one more node; ``changes`` replace those of the job's request, ``conf`` is added to it.

        If node ranks have to be given, each node gets the next one.
        """
        conf = {**self._fields.get("conf", {}), **changes.pop("conf", {})}
        wanted: dict[str, Any] = {**self._fields, "conf": conf}
        if self.ranks_have_to_be_given:
            wanted["node_rank"] = len(self.nodes)
        wanted |= changes
        request = self.harness.request(wanted.pop("endpoint"), **wanted)
        node = Node(request, f"{len(self.nodes)}", self.directory, self.harness.environment, self.logs)
        self.nodes.append(node)
        return node

    def start(self, count: int, **changes: Any) -> list[Node]:
        """Start ``count`` nodes in a round of their own, some perhaps after its last call; returns them by rank."""
        nodes = [self.node(**changes) for _ in range(count)]
        together(nodes)
        return sorted(nodes, key=rank_of)

    @property
    def ranks_have_to_be_given(self) -> bool:
        """True for a backend with a fixed number of nodes that uses the given ranks."""
        promised = entry(self.harness.backend).backend.capabilities
        return Capability.NODE_RANK in promised and Capability.ELASTIC not in promised

    def logs(self) -> str:
        """The end of what each node has written."""
        return "\n".join(f"--- {node}:\n{node.log[-_LOG_TAIL:]}" for node in self.nodes)


def rank_of(node: Node) -> int:
    """The rank of a node in the last round that it has joined."""
    assert node.place is not None, f"{node} has joined no round"
    return node.place.rank


def in_round(nodes: Sequence[Node], timeout: float = PATIENCE_S) -> list[Joined]:
    """Have all of these join and form the whole of one round; returns their places, in the order of the ranks."""
    return one_world([joining.result(timeout) for joining in [node.join() for node in nodes]])


def one_world(places: Iterable[Joined]) -> list[Joined]:
    """Assert that these are all the places of one round; returns them in the order of the ranks."""
    places = sorted(places, key=lambda place: place.rank)
    ranks, worlds = [place.rank for place in places], [place.world for place in places]
    assert ranks == list(range(len(places))), f"the {len(places)} nodes of one round have the ranks {ranks}: {places}"
    assert set(worlds) == {len(places)}, f"the {len(places)} nodes of one round believe in {worlds} nodes: {places}"
    return places


def together(nodes: Sequence[Node], joining: Sequence[Pending[Joined] | None] = (), what: str = "") -> list[Joined]:
    """Get all of these into one round that has no others: each joins again whenever its handler says so.

    ``joining`` are joins that have already begun, in the order of the nodes; None: the node is in a round. Returns the
    places in the order of the ranks. Raises AssertionError if this does not succeed within ``PATIENCE_S`` seconds,
    saying that ``what`` should have; ``NodeError`` if a node cannot join.
    """
    begun: list[Pending[Joined] | None] = [*joining, *([None] * (len(nodes) - len(joining)))]
    if not joining:
        begun = [node.join() for node in nodes]
    places: list[Joined] = []

    def joined() -> bool:
        for number, node in enumerate(nodes):
            pending = begun[number]
            if (pending is None or pending.done()) and node.num_nodes_waiting():
                begun[number] = node.join()
        if not all(pending is None or pending.done() for pending in begun):
            return False
        for pending in begun:
            if pending is not None:
                pending.result()
        places[:] = [node.place for node in nodes if node.place is not None]
        return {place.world for place in places} == {len(nodes)}

    eventually(joined, what or f"{len(nodes)} nodes are in one round and agree on its size", lambda: f"{places}")
    return one_world(places)


def eventually(
    condition: Callable[[], Any], what: str, now: Callable[[], str] = str, timeout: float = PATIENCE_S
) -> None:
    """Ask repeatedly until ``condition`` is true. Raises AssertionError after ``timeout`` s, saying: never ``what``."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}; now: {now()}"
        time.sleep(_AGAIN_S)
