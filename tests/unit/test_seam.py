"""What is converted to the seam takes clocks, identity and chance from a runtime. The rest import-linter sees, and what
goes through a set in its order ``simulation/test_random_jobs.py`` finds in other processes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from kits import ROOT

import rdzv_launcher
import rdzv_plugins

HOMES = {each.__name__: Path(each.__file__ or "").parent for each in (rdzv_plugins, rdzv_launcher)}
CONTRACT = re.compile(r'(?ms)^name = "Whole agents run in simulated time.*?^source_modules = \[(.*?)\n\]')
FURTHER = ["rdzv_plugins." + room for room in ("backends.etcd", "certificates", "kit", "kvstore.sockets")]
CALLED = {("os", "getpid"), ("os", "urandom"), ("clock", "now"), ("clock", "now_ns")}
"""Module and name of what only the seam may call."""


def path_of(module: str) -> Path:
    package, _, rest = module.partition(".")
    path = HOMES[package].joinpath(*rest.split("."))
    return path if path.is_dir() else path.with_suffix(".py")


def files() -> list[Path]:
    """Of the rooms that import-linter keeps from the clock and the network of this machine, and of a few more."""
    contract = CONTRACT.search((ROOT / "pyproject.toml").read_text())
    assert contract is not None
    paths = [path_of(room) for room in re.findall(r'"([\w.]+)"', contract[1]) + FURTHER]
    return sorted({file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])})


def wrong(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (ast.unparse(node.value), node.attr) in CALLED:
            yield f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.ImportFrom) and node.module in ("rdzv_plugins.clock", "os"):
            names = {(str(node.module).rpartition(".")[2], each.name) for each in node.names}
            if names & CALLED:
                yield f"line {node.lineno}: {ast.unparse(node)}"


def test_nothing_but_the_seam_is_asked() -> None:
    found = {str(file): list(wrong(ast.parse(file.read_text()))) for file in files()}
    assert len(found) > 80
    assert {file: what for file, what in found.items() if what} == {}
