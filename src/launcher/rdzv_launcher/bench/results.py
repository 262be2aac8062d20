"""Results as JSON lines: a manifest, then points, ratios and details as they are measured, then the end.

Each line is an object with ``record``: ``manifest``, ``point``, ``ratio``, ``details`` (whatever else a benchmark knows
about one case) or ``end``. A file without its end is from a run that was interrupted: what it contains is valid.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import resource
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from rdzv_launcher.bench.points import Point, Ratio, compare
from rdzv_plugins.errors import UsageError

SUFFIX = ".jsonl"
_REMEDY = "Results are the .jsonl files written by rdzv bench --out=DIR."
_DISTRIBUTIONS = ("rdzv-plugins", "torch", "torch_npu", "etcd3", "grpcio", "protobuf", "pluggy")
_NONE: Mapping[str, str] = MappingProxyType({})
_SECRET_NAME = r"\w*(?:password|passwd|secret|token)\w*"
_SECRET = re.compile(rf"({_SECRET_NAME}=)[^,]+", re.IGNORECASE)
_NOT_ASKED = ("command", "what", "run", "json", "out")
_TARGET, _FIGURE, _SPREAD = 22, 10, 24  # columns of the table
_SMALL = 0.01


# what a figure was measured on: without it nobody can tell what it means, or measure it again


def manifest(bench: str, options: Mapping[str, Any], plugins: Mapping[str, str] = _NONE) -> dict[str, Any]:
    """The machine, its limits, the versions, and what was asked for. Does not import torch.

    ``options``: every setting of the benchmark, including defaults, in a form that JSON can hold. ``plugins``: name and
    version of other distributions that are measured.
    """
    return {
        "bench": bench,
        "command": shlex.join(["rdzv", *_without_secrets(sys.argv[1:])]),
        "options": _without_secrets(options),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "limits": {
            "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            "processes": resource.getrlimit(resource.RLIMIT_NPROC)[1],
            "somaxconn": int(Path("/proc/sys/net/core/somaxconn").read_text()),
        },
        "python": platform.python_version(),
        "versions": _versions() | dict(plugins),
        "load": _load(),
    }


def manifest_as_text(about: Mapping[str, Any]) -> str:
    """A manifest as two lines of text."""
    versions = ", ".join(f"{name} {value}" for name, value in about["versions"].items())
    limits = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in about["limits"].items())
    return (
        f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB, {about['kernel']}, load {about['load']}\n"
        f"Python {about['python']}, {versions}; {limits}"
    )


def _without_secrets(data: Any, name: str = "") -> Any:
    """The data without what looks like a password, by its name or in ``--rdzv-conf``, as results are published."""
    if isinstance(data, Mapping):
        return {key: _without_secrets(value, key) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_without_secrets(each, name) for each in data]
    if isinstance(data, str):
        return "***" if data and re.fullmatch(_SECRET_NAME, name, re.IGNORECASE) else _SECRET.sub(r"\1***", data)
    return data


def _versions() -> dict[str, str]:
    found = {}
    for name in _DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _load() -> str:
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


# where the figures of one run go


class BenchOutput:
    """A table or JSON lines on stdout, and with ``--out`` a file and charts. A context manager; for one thread.

    After an error inside, what was measured is kept.
    """

    def __init__(self, args: argparse.Namespace, plugins: Mapping[str, str] = _NONE, **more: Any):
        """``more``: settings for the manifest that are not among ``args``, or replace them.

        Raises ``UsageError`` if ``--out`` cannot be written to, before anything is measured.
        """
        self.bench: str = args.what
        self._started = time.monotonic()
        self._as_json: bool = args.json
        asked = {name: value for name, value in vars(args).items() if name not in _NOT_ASKED}
        self._about = manifest(self.bench, asked | more, plugins)
        self._open = ExitStack()
        self._file: Path | None = None
        self._streams: list[TextIO] = [sys.stdout] if args.json else []
        if args.out is not None:
            from rdzv_launcher.bench.page import require_libraries

            require_libraries()  # if something is missing, that is better reported now than after minutes
            now = datetime.datetime.now(datetime.timezone.utc)
            self._file = Path(args.out) / f"{self.bench}-{now:%Y%m%d-%H%M%S}{SUFFIX}"
            require_writable(self._file.parent)

    def __enter__(self) -> BenchOutput:
        if self._file is not None:  # here, so that no empty file is left if something necessary is missing
            self._streams.append(self._open.enter_context(self._file.open("x")))
        self._write("manifest", self._about)
        if not self._as_json:
            print(manifest_as_text(self._about), end="\n\n", flush=True)
        return self

    def case(
        self, name: str, points: Sequence[Point], *, details: Mapping[str, Any] = _NONE, notes: Sequence[str] = ()
    ) -> None:
        """Write one case as soon as it is measured. ``notes``: lines under its table."""
        ratios = compare(points)
        for point in points:  # with median and spread, for those who read the lines without this project
            self._write("point", asdict(point) | {"median": point.median, "spread": point.spread})
        for ratio in ratios:
            self._write("ratio", asdict(ratio))
        if details:
            self._write("details", {"case": name, **details})
        if not self._as_json:
            print(table(name, points, ratios, notes), flush=True)

    def say(self, text: str) -> None:
        """Print a line on stderr."""
        print(f"{self.bench}: {text}", file=sys.stderr, flush=True)

    def begins(self, case: str) -> None:
        """Say that a case is measured now: nobody waits for minutes without knowing for what."""
        seconds = int(time.monotonic() - self._started)
        self.say(f"measuring {case} ... ({seconds // 60}:{seconds % 60:02d})")

    def end(self, caption: str) -> None:
        """Everything was measured; ``caption`` says what the figures are, for the terminal."""
        self._write("end", {"load": _load()})
        if not self._as_json:
            print(caption, flush=True)

    def __exit__(self, kind: object, *_: object) -> None:
        self._open.close()
        if kind is None and self._file is not None:
            from rdzv_launcher.bench.page import write_charts

            for path in [self._file, *write_charts(read_result(self._file), self._file.parent)]:
                self.say(f"wrote {path}")

    def _write(self, record: str, data: Mapping[str, Any]) -> None:
        line = json.dumps({"record": record, **data})
        for stream in self._streams:
            stream.write(line + "\n")
            stream.flush()


def require_writable(directory: Path) -> None:
    """Check the directory: if it cannot be written to, that is better reported now than after minutes."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise UsageError(f"--out: cannot write to {directory}: {error.strerror}") from None


# read back


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


def read_result(file: Path) -> Result:
    """Read a file. Raises ``UsageError`` if it is not one of ours, or cannot be read."""
    result: Result | None = None
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read: {error}") from None
    for number_, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            kind = record.pop("record")
            if kind == "manifest":
                if "bench" not in record:
                    raise ValueError("it does not name its benchmark")
                result = Result(file.stem, record)
            elif result is None:
                raise ValueError("the first line is not a manifest")
            else:
                _add(result, kind, record)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if number_ == len(lines) and result is not None:
                break  # the run was killed while it wrote this line
            why = f"{error} is missing" if isinstance(error, KeyError) else error
            raise UsageError(f"{file}, line {number_}: not a result of rdzv bench: {why}", remedy=_REMEDY) from None
    if result is None:
        raise UsageError(f"{file}: empty file", remedy=_REMEDY)
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
        raise UsageError(f"no results (*{SUFFIX}) in {directory}", remedy="Create some: rdzv bench all --out DIR")
    return [read_result(file) for file in files]


# the table


def number(value: float) -> str:
    """A figure with three significant digits; whole numbers from a hundred on."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def share(ratio: float, reference: str) -> str:
    """A ratio in words; where it is very small, the reciprocal: easier to imagine than 0.000833."""
    if 0 < ratio < _SMALL:
        return f"{reference} has {number(1 / ratio)} times as much"
    return f"{number(ratio)} of {reference}"


def refusals(ratios: Iterable[Ratio]) -> list[str]:
    """Why ratios were refused, each reason once. A reference that was not measured has said so itself."""
    why: dict[str, list[str]] = {}
    for each in ratios:
        if each.refused and each.low is not None:
            why.setdefault(each.refused, []).append(each.reference)
    return [f"no ratio to {', '.join(names)}: {refused}" for refused, names in why.items()]


def table(case: str, points: Sequence[Point], ratios: Sequence[Ratio], notes: Sequence[str] = ()) -> str:
    """The points of one case under its name, a line each, for 100 columns; ratios beside them, or why there is none."""
    reasons = {ratio.refused for ratio in ratios if ratio.low is not None}
    if len(ratios) >= 3 and len(reasons) == 1 and "" not in reasons:
        ratios, notes = [], [*notes, f"no ratios: {reasons.pop()}"]  # said only once
    lines = [case]
    for figure in dict.fromkeys(point.figure for point in points):
        group = [point for point in points if point.figure == figure]
        lines.append(f"  {group[0].title}{f' [{group[0].unit}]' if group[0].unit else ''}")
        for point in group:
            mine = [each for each in ratios if (each.figure, each.target) == (figure, point.target)]
            lines += _lines(point, mine)
    return "\n".join([*lines, *(f"  {note}" for note in notes), ""])


def _lines(point: Point, ratios: Sequence[Ratio]) -> list[str]:
    name = f"    {point.target:{_TARGET}}"
    if point.median is None:
        return [f"{name}  {point.unfinished or 'not measured'}"]
    spread = f"({number(min(point.samples))} .. {number(max(point.samples))})"
    line = f"{name}{number(point.median):>{_FIGURE}}  {spread:{_SPREAD}}"
    printed = [share(ratio.value, ratio.reference) for ratio in ratios if ratio.value is not None]
    lines = [(line + "  ".join(printed)).rstrip(), *(f"      {why}" for why in refusals(ratios))]
    if point.unfinished:
        lines.append(f"      then {point.unfinished}")
    return lines
