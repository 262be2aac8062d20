"""Planting a defect, and looking who finds it: ``python tests/simulation --defects [NAME...]``.

Nothing is written to the working tree: a process that plants a defect compiles the changed text of that one module when
it is imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from msgspec import Struct

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"
SCENARIOS = [each for kind in ("scenarios", "agent", "static") for each in sorted(HERE.glob(f"test_{kind}_*.py"))]
_ENDS_S = 1200.0
"""A defect that makes the simulation go on for so long is found."""


class Defect(Struct, frozen=True):
    """``old`` becomes ``new`` in ``file``."""

    name: str
    origin: str
    file: str
    old: str
    new: str
    found: str = ""
    """The scenario that found it last: it is run first."""

    @property
    def module(self) -> str:
        return self.file.removeprefix("launcher/").removesuffix(".py").replace("/", ".")

    @property
    def source(self) -> str:
        """The file with the defect in it. Raises ``LookupError`` if the piece is not there exactly once."""
        text = (SRC / self.file).read_text()
        if (times := text.count(self.old)) != 1:
            raise LookupError(f"{self.name}: {self.file} has this {times} times: {self.old}")
        return text.replace(self.old, self.new)


def plant(defect: Defect) -> None:
    """Have this process import the module with the defect. Call before anything of ours is imported."""
    assert defect.module not in sys.modules
    sys.meta_path.insert(0, _Finder(defect))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, defect: Defect) -> None:
        self._defect = defect

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._defect.module:
            return None
        file = str(SRC / self._defect.file)
        return importlib.util.spec_from_file_location(name, file, loader=_Loader(name, file, self._defect.source))


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, file: str, source: str) -> None:
        super().__init__(name, file)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        code: Any = compile(self._source, self.path, "exec", dont_inherit=True)
        return code  # type: ignore[no-any-return]


def tell_all(names: Sequence[str], seeds: range) -> int:
    """Plant the defects with these names, or all; tells what finds each. Returns 1 if one of them is not found."""
    from simulation.defects import DEFECTS

    missed = 0
    for defect in [each for each in DEFECTS if not names or each.name in names]:
        found = finders(defect, seeds)
        missed += not found
        print(f"{defect.name} ({defect.origin}): {'; '.join(found) or 'NOTHING finds it'}", flush=True)
    return bool(missed)


def finders(defect: Defect, seeds: range = range(0)) -> list[str]:
    """The first scenario that finds it, and the oracles that do in these seeds, each with its first seed.

    By a process of its own.
    """
    command = [sys.executable, str(HERE), "--planted", defect.name, "--seeds", str(seeds.start), str(seeds.stop)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ENDS_S, check=False)
    except subprocess.TimeoutExpired:
        return ["it does not end"]
    found = [line.removeprefix("found by ") for line in done.stdout.splitlines() if line.startswith("found by ")]
    if not found and done.returncode:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return found


def look_for(name: str, seeds: range) -> int:
    """In this process, which does nothing else."""
    from simulation.defects import DEFECTS

    defect = next(each for each in DEFECTS if each.name == name)
    plant(defect)
    for finder in (*_scenarios(defect), *_oracles(seeds)):
        print("found by", finder, flush=True)
    return 0


def _scenarios(defect: Defect) -> list[str]:
    """The first scenario that fails."""
    import pytest

    seen = _Tests(defect)
    options = ["-qx", "-n0", "--noconftest", "-pno:cacheprovider", "-mnot thorough", "--timeout=300"]
    pytest.main([*options, *map(str, SCENARIOS)], plugins=[seen])
    return seen.failed


def _oracles(seeds: range) -> Iterator[str]:
    """The oracles that find something, each with its first seed."""
    from simulation.random_jobs import ALL, failure_of
    from simulation.seeds import job_of

    seen = set[str]()
    for seed in seeds:
        what = failure_of(lambda cut, seed=seed: job_of(seed, cut), ALL)  # type: ignore[misc]
        oracle = what.partition(" ")[0]
        if oracle and oracle not in seen:
            seen.add(oracle)
            yield f"{oracle} in seed {seed}"


class _Tests:
    """The scenarios, in an order in which a defect is likely to be found soon."""

    def __init__(self, defect: Defect) -> None:
        self._found = defect.found
        folder = defect.file.split("/")[-2]
        self._file = {"agent": "test_agent", "supervisor": "test_agent", "static": "test_static"}.get(
            folder, "test_scen"
        )
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=self._place)

    def _place(self, item: Any) -> tuple[bool, ...]:
        return (
            item.name.partition("[")[0] != self._found,
            not item.path.name.startswith(self._file),
            item.name.endswith(("[2]", "[3]")),
        )

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid.rpartition("::")[2])

    def pytest_collectreport(self, report: Any) -> None:
        self.pytest_runtest_logreport(report)
