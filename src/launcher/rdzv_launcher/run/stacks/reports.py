"""What nodes have answered, as typed values: whoever can reach the service can answer, so everything is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rdzv_launcher.run.stacks.frames import Frame, Thread, frame_of

_MOST_WORKERS = 4096
_MOST_TEXTS = 32


@dataclass(frozen=True)
class ProcessReport:
    """A worker, or a process below one."""

    pid: int
    state: str
    """One letter, as in /proc; or ``ended``."""
    wait_channel: str = ""
    command: str = ""
    is_python: bool | None = None
    how: str = ""
    """How its stacks were read; empty if they were not."""
    tried: tuple[str, ...] = ()
    """Why other ways were not possible."""
    threads: tuple[Thread, ...] = ()
    """Its threads, the main one first."""
    native: tuple[Frame, ...] = ()
    """The main thread with its native frames, if they were read."""
    kernel: tuple[str, ...] = ()
    children: tuple[ProcessReport, ...] = ()
    """The processes that it has started, without stacks."""
    below: tuple[ProcessReport, ...] = ()
    """The processes that it has started, with stacks, if those were asked for."""

    @property
    def reader(self) -> ProcessReport:
        """The process whose stack tells where this one is: itself, or the Python program that it has started."""
        return self if self.threads else next((each for each in self.below if each.threads), self)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Where its main thread is; empty if that is not known."""
        threads = self.reader.threads
        return threads[0].frames if threads else ()


@dataclass(frozen=True)
class WorkerReport:
    """What is known about one worker of a job: who it is, and where it stands."""

    rank: int
    local_rank: int
    node_rank: int | None
    host: str
    process: ProcessReport


def workers_of(answer: Any) -> list[WorkerReport]:
    """The workers of one node, from its answer. Raises ``ValueError`` if it is not a valid answer."""
    try:
        stacks = [tuple(map(frame_of, _list(stack))) for stack in _list(answer["stacks"])]
        node_rank, host = answer["node_rank"], _text(answer["host"])
        if node_rank is not None and type(node_rank) is not int:
            raise ValueError("its rank")
        return [
            WorkerReport(_number(each["rank"]), _number(each["local_rank"]), node_rank, host, _process(each, stacks))
            for each in _list(answer["workers"])[:_MOST_WORKERS]
        ]
    except (KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _process(data: Mapping[str, Any], stacks: Sequence[tuple[Frame, ...]], depth: int = 0) -> ProcessReport:
    native = data.get("native")
    deeper = () if depth else tuple(_process(each, stacks, 1) for each in _list(data.get("below", [])))
    children = () if depth else tuple(_process(each, (), 1) for each in _list(data.get("children", [])))
    return ProcessReport(
        pid=_number(data["pid"]),
        state=_text(data["state"]),
        wait_channel=_text(data.get("wait_channel", "")),
        command=_text(data.get("command", "")),
        is_python=data.get("python") if isinstance(data.get("python"), bool) else None,
        how=_text(data.get("how", "")),
        tried=tuple(map(_text, _list(data.get("tried", []))[:_MOST_TEXTS])),
        threads=tuple(
            Thread(_text(each["name"]), bool(each["main"]), stacks[_number(each["stack"])], each.get("active"))
            for each in _list(data.get("threads", []))
        ),
        native=stacks[_number(native)] if native is not None else (),
        kernel=tuple(map(_text, _list(data.get("kernel", []))[:_MOST_TEXTS])),
        children=children,
        below=deeper,
    )


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("not a number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value[:1000]
