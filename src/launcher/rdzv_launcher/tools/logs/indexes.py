"""Reads the indexes that agents have written beside the log files of their workers, or whatever is left of them."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rdzv_launcher.run.workers.output.index import NAME, WorkerRecord
from rdzv_plugins.errors import UsageError
from rdzv_plugins.plain_text import printable

_DEPTH = 3
"""How many levels of directories are searched for an index: LOGS, or a directory in which nodes have their own."""

_ROUND = re.compile(r"attempt_\d+(\.round_\d+)?")
"""Directories of rounds, which have no index of their own."""
_MOST_S = 1e11
"""Later than any time that a clock has."""


class Entry(Struct, frozen=True):
    """A worker in one round, with everything that its node's index says about it."""

    worker: WorkerRecord
    directory: str
    """The directory of the index, to which the worker's paths are relative."""
    began: float
    ended: float | None
    """When the worker ended, in seconds of its machine's clock; None: its end was not written."""

    @property
    def failed(self) -> bool:
        return bool(self.worker.exit_code) and not self.worker.stopped

    def path(self, stream: str) -> str:
        """The path of ``stdout`` or ``stderr``; empty if that went to no file."""
        found = getattr(self.worker, stream)
        return os.path.join(self.directory, found) if found else ""


class Node(Struct, frozen=True):
    """What one agent has written."""

    directory: str
    entries: tuple[Entry, ...]
    """Its entries, in the order in which the workers began."""
    unreadable: int
    """How many of its lines were not written by us."""

    @property
    def began(self) -> float:
        return min(each.began for each in self.entries)

    @property
    def rounds(self) -> frozenset[tuple[str, int, int]]:
        """The rounds of this node: nodes of the same job have some in common."""
        return frozenset(
            (each.worker.run, each.worker.round, each.worker.store_port)
            for each in self.entries
            if each.worker.store_port
        )

    @property
    def places(self) -> frozenset[tuple[int, int, int]]:
        """The places of this node's workers: nodes of the same job have none in common."""
        return frozenset((each.worker.round, each.worker.store_port, each.worker.rank) for each in self.entries)


def find_nodes(directory: str) -> list[Node]:
    """All nodes below ``directory``, newest first. Raises ``UsageError`` if there is nothing."""
    if not os.path.isdir(directory):
        what = "is no directory" if os.path.exists(directory) else "is not there"
        raise UsageError(f"{directory} {what}", remedy="Give the --log-dir of a job, or a directory in it.")
    nodes = [read_node(each) for each in _with_index(directory)]
    found = [each for each in nodes if each.entries]
    if not found:
        broken = sum(each.unreadable for each in nodes)
        why = f"has no {NAME} of which a line can be read" if broken else f"has no {NAME} with workers in it"
        raise UsageError(
            f"{directory} {why}",
            remedy="rdzv-run writes it into the --log-dir of a job when its workers start; torchrun and --logs-specs "
            "do not.",
        )
    return sorted(found, key=lambda node: node.began, reverse=True)


def newest_job(nodes: list[Node]) -> list[Node]:
    """Those of ``nodes``, newest first, that belong to the same job as the first.

    They had a round in common, but no rank in it: another launch with its own port has the same rounds.
    """
    job, rounds, places, rest = [nodes[0]], set(nodes[0].rounds), set(nodes[0].places), nodes[1:]
    while node := next((each for each in rest if each.rounds & rounds and not each.places & places), None):
        job.append(node)
        rest = [each for each in rest if each is not node]
        rounds |= node.rounds
        places |= node.places
    return job


def _with_index(directory: str) -> Iterator[str]:
    base = directory.rstrip(os.sep).count(os.sep)
    for path, names, files in os.walk(directory):
        if NAME in files:
            yield path
        deep = path.rstrip(os.sep).count(os.sep) - base >= _DEPTH
        names[:] = [] if deep else [each for each in names if not _ROUND.fullmatch(each)]


def read_node(directory: str) -> Node:
    """The index in ``directory``. What cannot be read is left out, and counted."""
    found: dict[tuple[int, int, int], Entry] = {}
    unreadable = 0
    try:
        # if it is a pipe, which others may have made there, nobody waits for its other end
        file = os.open(os.path.join(directory, NAME), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(file, "rb") as index:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return Node(directory, (), 1)
            lines = index.read().split(b"\n")
    except OSError:
        return Node(directory, (), 1)
    for line in lines[:-1]:  # after the last line end there is nothing, or something that is still being written
        if not line:
            continue
        try:
            data = json.loads(line)
            when = float(data["time"])
            if not (math.isfinite(when) and abs(when) < _MOST_S):
                raise ValueError(when)
            if data["event"] == "moved":
                found = {key: _moved(each, str(data["from"]), str(data["to"])) for key, each in found.items()}
                continue
            worker = _worker(data)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            unreadable += 1
            continue
        key = (worker.round, worker.local_rank, worker.pid)
        if data["event"] == "ended":
            began = found[key].began if key in found else when
            found[key] = Entry(worker, directory, began, when)
        else:
            found[key] = Entry(worker, directory, when, None)
    return Node(directory, tuple(found.values()), unreadable)


def _worker(data: dict[str, Any]) -> WorkerRecord:
    """Read a worker. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for data that an agent does not write."""
    code, stdout, stderr = data["exit_code"], data["stdout"], data["stderr"]
    return WorkerRecord(
        run=printable(str(data["run"])),
        round=int(data["round"]),
        store_port=int(data["store_port"]),
        rank=int(data["rank"]),
        local_rank=int(data["local_rank"]),
        host=printable(str(data["host"])),
        pid=int(data["pid"]),
        stdout=None if stdout is None else _inside(stdout),
        stderr=None if stderr is None else _inside(stderr),
        exit_code=None if code is None else int(code),
        stopped=bool(data["stopped"]),
    )


def _inside(path: str) -> str:
    """A path that is valid, and does not lead elsewhere. Raises ``ValueError``."""
    found = os.path.normpath(path)
    if b"\0" in os.fsencode(found) or os.path.isabs(found) or found.split(os.sep)[0] == os.pardir:
        raise ValueError(path)
    return found


def _moved(entry: Entry, before: str, after: str) -> Entry:
    def name(path: str | None) -> str | None:
        first, slash, rest = (path or "").partition(os.sep)
        return f"{_inside(after)}{slash}{rest}" if first == before else path

    worker = entry.worker
    return replace(entry, worker=replace(worker, stdout=name(worker.stdout), stderr=name(worker.stderr)))
