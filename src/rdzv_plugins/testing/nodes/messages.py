"""What a node's process and the tests tell each other, as JSON: values, and errors with everything a user would see."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any


def encode(value: Any) -> Any:
    """Encode a value of a command as JSON: bytes and spans of time are marked, tuples become lists."""
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).decode("latin-1")}
    if isinstance(value, timedelta):
        return {"seconds": value.total_seconds()}
    if isinstance(value, list | tuple):
        return [encode(each) for each in value]
    if isinstance(value, dict):
        return {"items": [[encode(key), encode(each)] for key, each in value.items()]}
    return value


def decode(data: Any) -> Any:
    """The value that was encoded."""
    if isinstance(data, list):
        return [decode(each) for each in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "bytes":
        return content.encode("latin-1")
    if kind == "seconds":
        return timedelta(seconds=content)
    return {decode(key): decode(each) for key, each in content}


def error_as_data(error: BaseException) -> dict[str, Any]:
    """Everything that ``NodeError`` has."""
    return {
        "kinds": [kind.__name__ for kind in type(error).__mro__ if kind is not object],
        "text": str(error),
        "remedy": str(getattr(error, "remedy", "")),
        "exit_code": getattr(error, "exit_code", None),
    }


@dataclass(eq=False)
class NodeError(Exception):
    """An error that a node's handler has raised, in its own process."""

    node: str
    """The node whose handler has raised it."""
    command: str
    kinds: list[str]
    """The names of its class and all base classes, its own first."""
    text: str
    remedy: str
    exit_code: int | None
    """The exit code with which the launcher would end; None if the error is not ours."""

    def is_a(self, kind: type[BaseException] | str) -> bool:
        """Whether it is of this class or a subclass."""
        return (kind if isinstance(kind, str) else kind.__name__) in self.kinds

    def __str__(self) -> str:
        return f"{self.command} of {self.node} raised {self.kinds[0]}: {self.text}\n{self.remedy}"
