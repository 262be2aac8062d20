"""What a node answers: its place in a round, or anything else that may come later."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from rdzv_plugins.testing.contract.parts import PATIENCE
from rdzv_plugins.testing.nodes import messages as node_messages
from rdzv_plugins.testing.nodes.messages import NodeError

PATIENCE_S = PATIENCE
"""Seconds to wait for an answer: nothing takes that long."""

T = TypeVar("T")


class Answering(Protocol):
    """The node, as its answers see it."""

    @property
    def state(self) -> str: ...

    def receive(self, timeout: float) -> bool: ...

    def logs(self) -> str: ...


@dataclass(frozen=True)
class Joined:
    """A node's place in a round, and where its workers find the store of the round."""

    rank: int
    world: int
    address: str
    """MASTER_ADDR of its workers."""
    port: int
    env: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """All variables that the handler and the plug-ins add for its workers."""


class Pending(Generic[T]):
    """The answer to a command, which may come later. Used by the thread that uses the node."""

    def __init__(self, node: Answering, command: str, convert: Callable[[Any], T]) -> None:
        self._node, self._command, self._convert = node, command, convert
        self._answer: Mapping[str, Any] | None = None
        self._value: list[T] = []

    def settle(self, answer: Mapping[str, Any]) -> None:
        """Called by the node when the answer has come."""
        self._answer = answer
        if "error" not in answer:
            self._value = [self._convert(node_messages.decode(answer["value"]))]

    def done(self) -> bool:
        """Whether the answer, or the error, is there. Never waits."""
        if self._answer is None:
            self._node.receive(0)
        return self._answer is not None

    def failed(self) -> bool:
        """Whether it has ended in an error. Never waits."""
        return self.done() and self._answer is not None and "error" in self._answer

    def result(self, timeout: float = PATIENCE_S) -> T:
        """The answer. Raises ``NodeError`` if the node's handler has raised, AssertionError after ``timeout`` s."""
        deadline = time.monotonic() + timeout
        while self._answer is None:
            left = deadline - time.monotonic()
            if left <= 0 or not self._node.receive(left):
                raise AssertionError(
                    f"{self._command} of {self._node} is not answered after {timeout - left:.1f} s: its process "
                    f"{self._node.state}\n{self._node.logs()}"
                )
        if "error" in self._answer:
            raise NodeError(str(self._node), self._command, **self._answer["error"])
        return self._value[0]

    def error(self, timeout: float = PATIENCE_S) -> NodeError:
        """The error in which it ends. Raises AssertionError if it does not, or not within ``timeout`` seconds."""
        try:
            result = self.result(timeout)
        except NodeError as error:
            return error
        raise AssertionError(f"{self._command} of {self._node} raised no error: {result}\n{self._node.logs()}")
