"""What is converted to the seam takes clocks, identity and chance from a runtime, and iterates over no set."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rdzv_plugins

HOME = Path(rdzv_plugins.__file__).parent
ROOMS = (
    "kvstore/coordination",
    "kvstore/native",
    "kvstore/sockets",
    "kvstore/tcpstore",
    "kit",
    "backends/etcd",
    "backends/parallel",
    "backends/static",
    "rounds",
    "assemble/looking.py",
    "assemble/recognition.py",
    "job_token.py",
    "certificates.py",
    "reporting.py",
)
CALLED = {("os", "getpid"), ("os", "urandom"), ("clock", "now"), ("clock", "now_ns")}
"""Module and name of what only the seam may call."""


def files() -> list[Path]:
    return sorted(
        file for room in ROOMS for file in ([HOME / room] if room[-3:] == ".py" else (HOME / room).rglob("*.py"))
    )


def test_the_rooms_have_files() -> None:
    assert all((HOME / room).exists() for room in ROOMS)


def is_set(node: ast.expr, sets: set[str]) -> bool:
    """Whether that is a set, as far as its text shows."""
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in ("list", "tuple", "iter", "enumerate") and node.args:
            return is_set(node.args[0], sets)
        return isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    return ast.unparse(node) in sets


def sets_of(scope: ast.AST) -> Iterator[str]:
    """The names of sets there, as far as what is assigned shows."""
    for node in ast.walk(scope):
        annotated = isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith(("set[", "frozenset["))
        if annotated or (isinstance(node, ast.Assign) and is_set(node.value, set())):
            yield from map(ast.unparse, [node.target] if isinstance(node, ast.AnnAssign) else node.targets)


def iterated_sets(tree: ast.Module) -> Iterator[str]:
    """Where the order of a set matters; a set made from another has none."""
    attributes = {name for name in sets_of(tree) if "." in name}
    unordered = {id(one) for node in ast.walk(tree) if isinstance(node, ast.SetComp) for one in node.generators}
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for scope in functions or [tree]:
        sets = attributes | set(sets_of(scope))
        for node in ast.walk(scope):
            loops = isinstance(node, (ast.For, ast.comprehension)) and id(node) not in unordered
            if loops and is_set(node.iter, sets):
                yield f"line {node.iter.lineno}: {ast.unparse(node.iter)} is iterated"


def wrong(tree: ast.Module) -> Iterator[str]:
    yield from iterated_sets(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (ast.unparse(node.value), node.attr) in CALLED:
            yield f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.ImportFrom) and node.module in ("rdzv_plugins.clock", "os"):
            names = {(str(node.module).rpartition(".")[2], each.name) for each in node.names}
            if names & CALLED:
                yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.getpid()",
        "from os import urandom",
        "from rdzv_plugins.clock import now",
        "for each in {1, 2}: pass",
        "known: set[int] = set()\nfound = [each for each in list(known)]",
    ],
)
def test_what_is_wrong_is_seen(text: str) -> None:
    assert list(wrong(ast.parse(text)))


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(HOME)))
def test_nothing_but_the_seam_is_asked(file: Path) -> None:
    assert not list(wrong(ast.parse(file.read_text())))
