"""Nodes of every engine of ours in processes that cannot import torch: they meet, lose one, meet again, and end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kits import KITS

from rdzv_plugins.errors import MissingDependency
from rdzv_plugins.testing.builtin import EtcdHarness, ParallelHarness, StaticHarness, TieredHarness
from rdzv_plugins.testing.harness import Harness

pytestmark = pytest.mark.thorough
"""In the gate: whole agents that cannot import it, tests/launcher/test_agent_without_torch.py."""

PROGRAM = KITS / "unit" / "no_torch_node.py"
HARNESSES = (StaticHarness, ParallelHarness, TieredHarness, EtcdHarness)


class Node:
    """A process of ``no_torch_node``; what it writes to standard error is shown when a test fails."""

    def __init__(self, request: dict[str, Any], held: ExitStack) -> None:
        command = [sys.executable, str(PROGRAM), json.dumps(request)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        held.callback(self.kill)

    def ask(self, *call: Any) -> None:
        """Tell it what to do. Its answer is for ``answer``."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the node has ended, see its standard error"
        return json.loads(line)

    def call(self, *call: Any) -> Any:
        self.ask(*call)
        return self.answer()

    def end(self) -> int:
        """Let it go; returns its exit code."""
        self._process.communicate()
        return self._process.returncode

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(params=HARNESSES, ids=lambda each: each.backend)
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    made: Harness = request.param()
    try:
        made.start()
    except MissingDependency as error:
        pytest.skip(str(error))
    try:
        yield made
    finally:
        made.close()


def exchange(nodes: list[Node], value: str) -> None:
    """A value from one to the other, by the store of their round, where no value of an earlier round is."""
    first, second = nodes
    assert first.call("store", "check", ["value"]) is False
    second.ask("store", "get", "value")  # waits
    first.call("store", "set", "value", value)
    assert second.answer() == value
    assert [node.call("store", "add", "both", 1) for node in nodes] == [1, 2]


def test_nodes_that_cannot_import_torch_go_through_a_whole_job(harness: Harness, tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "backend": harness.backend,
        "run_id": "no-torch",
        "endpoint": harness.endpoint(tmp_path),
        "min_nodes": 2,
        "max_nodes": 2,
        "nproc_per_node": 1,
        "conf": dict(harness.conf) | ({"ttl": "14"} if "ttl" in harness.conf else {}),
    }
    with ExitStack() as held:
        first, second = nodes = [Node(common | {"node_rank": rank}, held) for rank in (0, 1)]
        for node in nodes:
            node.ask("join")
        assert [node.answer() for node in nodes] == [[0, 2, True], [1, 2, True]]
        exchange(nodes, "of the first round")

        second.kill()
        third = Node(common | {"node_rank": 1}, held)
        third.ask("join")
        first.call("changed")
        assert first.call("join") == [0, 2, True]
        assert third.answer() == [1, 2, True]
        exchange([first, third], "of the second round")

        first.ask("leave")
        third.ask("leave")
        assert [first.answer(), third.answer()] == [[], []], "modules that were imported, or were tried"
        assert [first.end(), third.end()] == [0, 0]
