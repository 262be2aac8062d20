"""Results as JSON lines: a manifest, then points, ratios and details as they are measured, then the end.

Each line is an object with ``record``: ``manifest``, ``point``, ``ratio``, ``details`` (whatever else a benchmark knows
about one case) or ``end``. A file without its end is from a run that was interrupted: what it contains is valid.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rdzv_launcher.bench.method.points import Point, Ratio
from rdzv_plugins.errors import UsageError

SUFFIX = ".jsonl"


@dataclass
class Result:
    """One run of one benchmark, read back."""

    name: str
    """The name of its file, without the suffix."""
    manifest: dict[str, Any]
    points: list[Point] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    """The last record; None: the run was interrupted."""

    @property
    def bench(self) -> str:
        return str(self.manifest["bench"])


class Writer:
    """Writes the records of one run to any number of open text files, each at once. For one thread."""

    def __init__(self, streams: Sequence[TextIO]) -> None:
        self._streams = streams

    def manifest(self, about: Mapping[str, Any]) -> None:
        """Write the manifest, first; ``about`` is as ``method.manifest`` makes it."""
        self._write({"record": "manifest", **about})

    def points(self, points: Iterable[Point]) -> None:
        """Write points with median and spread, for those who read the lines without this project."""
        for point in points:
            more = {"median": point.median, "spread": point.spread}
            self._write({"record": "point", **asdict(point), **more})

    def ratios(self, ratios: Iterable[Ratio]) -> None:
        for ratio in ratios:
            self._write({"record": "ratio", **asdict(ratio)})

    def details(self, data: Mapping[str, Any]) -> None:
        """Write what only this benchmark knows about one case."""
        self._write({"record": "details", **data})

    def end(self) -> None:
        """Write the end, last: everything was measured."""
        self._write({"record": "end", "load": _load()})

    def _write(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record)
        for stream in self._streams:
            stream.write(line + "\n")
            stream.flush()


def read_result(file: Path) -> Result:
    """Read a file. Raises ``UsageError`` if it is not one of ours, or cannot be read."""
    result: Result | None = None
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            kind = record.pop("record")
            if kind == "manifest":
                if "bench" not in record:
                    raise ValueError("it does not say of which benchmark it is")
                result = Result(file.stem, record)
            elif result is None:
                raise ValueError("the first line is no manifest")
            else:
                _add(result, kind, record)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if number == len(lines) and result is not None:
                break  # the run was killed while it wrote this line
            why = f"{error} is not there" if isinstance(error, KeyError) else error
            raise UsageError(
                f"{file}, line {number}: not a result of rdzv bench: {why}",
                remedy="Results are the .jsonl files that rdzv bench writes with --out.",
            ) from None
    if result is None:
        raise UsageError(
            f"{file}: it is empty", remedy="Results are the .jsonl files that rdzv bench writes with --out."
        )
    return result


def _add(result: Result, kind: str, record: dict[str, Any]) -> None:
    if kind == "point":
        del record["median"], record["spread"]
        result.points.append(Point(**record | {"samples": tuple(record["samples"])}))
    elif kind == "ratio":
        result.ratios.append(Ratio(**record))
    elif kind == "details":
        result.details.append(record)
    elif kind == "end":
        result.end = record


def read_results(directory: Path) -> list[Result]:
    """All results in ``directory``, by name. Raises ``UsageError`` if there are none."""
    files = sorted(directory.glob(f"*{SUFFIX}")) if directory.is_dir() else []
    files = [file for file in files if file.stat().st_size] or files  # a run that was killed before its first line
    if not files:
        raise UsageError(
            f"there are no results (*{SUFFIX}) in {directory}", remedy="Make some: rdzv bench all --out DIR"
        )
    return [read_result(file) for file in files]


def _load() -> str:
    return " ".join(f"{load:.2f}" for load in os.getloadavg())
