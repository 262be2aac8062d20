"""What is converted to the seam takes clocks, identity and chance from a runtime, and iterates over no set."""

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
IN_NO_ORDER = {"sorted", "set", "frozenset", "any", "all", "sum", "min", "max", "Counter"}
IN_ITS_ORDER = {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "join", "fromkeys", "extend", "chain"}


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


def called(node: ast.AST) -> str:
    """The last part of the name of what is called there."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", None) or getattr(node.func, "id", "")


def is_view(node: ast.expr) -> bool:
    return called(node) == "keys"


def is_set(node: ast.expr, sets: set[str]) -> bool:
    """Whether that is a set, as far as its text shows."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.BitAnd, ast.BitOr, ast.BitXor)):
        return any(is_set(each, sets) or is_view(each) for each in (node.left, node.right))
    if isinstance(node, ast.Call):
        if called(node) in ("union", "difference", "intersection", "symmetric_difference", "copy"):
            return isinstance(node.func, ast.Attribute) and is_set(node.func.value, sets)
        made = ast.unparse(node.func).partition("[")[0] in ("set", "frozenset")
        return made or f"{called(node)}()" in sets
    return isinstance(node, (ast.Set, ast.SetComp)) or ast.unparse(node) in sets


def is_annotated(node: ast.expr | None) -> bool:
    return node is not None and ast.unparse(node).startswith(("set[", "frozenset[", "Set[", "AbstractSet["))


def sets_of(scope: ast.AST) -> Iterator[str]:
    """The names of sets there, as far as annotations and what is assigned show."""
    for node in ast.walk(scope):
        if isinstance(node, ast.AnnAssign) and is_annotated(node.annotation):
            yield ast.unparse(node.target)
        elif isinstance(node, ast.Assign) and is_set(node.value, set()):
            yield from map(ast.unparse, node.targets)
        elif isinstance(node, ast.arg) and is_annotated(node.annotation):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and is_annotated(node.returns):
            yield f"{node.name}()"


def iterated(scope: ast.AST) -> Iterator[ast.expr]:
    """What is gone through there, in an order that may matter."""
    free: set[ast.AST] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.SetComp) or called(node) in IN_NO_ORDER:
            inner = [node] if isinstance(node, ast.SetComp) else getattr(node, "args", [])
            free.update(one for each in inner for one in getattr(each, "generators", ()))
        if isinstance(node, ast.For) or (isinstance(node, ast.comprehension) and node not in free):
            yield node.iter
        elif isinstance(node, ast.Call) and called(node) in IN_ITS_ORDER:
            yield from node.args
        elif isinstance(node, (ast.List, ast.Tuple, ast.Call)):
            yield from (each.value for each in ast.iter_child_nodes(node) if isinstance(each, ast.Starred))


def iterated_sets(tree: ast.Module) -> Iterator[str]:
    of_all = {name for name in sets_of(tree) if "." in name or name.endswith("()")}
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for scope in (tree, *functions):
        sets = of_all if scope is tree else of_all | set(sets_of(scope))
        yield from (f"line {each.lineno}: {ast.unparse(each)}" for each in iterated(scope) if is_set(each, sets))


def wrong(tree: ast.Module) -> Iterator[str]:
    yield from iterated_sets(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (ast.unparse(node.value), node.attr) in CALLED:
            yield f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.ImportFrom) and node.module in ("rdzv_plugins.clock", "os"):
            names = {(str(node.module).rpartition(".")[2], each.name) for each in node.names}
            if names & CALLED:
                yield f"line {node.lineno}: {ast.unparse(node)}"


def test_nothing_but_the_seam_is_asked() -> None:
    found = {str(file): list(wrong(ast.parse(file.read_text()))) for file in files()}
    assert len(found) > 100
    assert {file: what for file, what in found.items() if what} == {}
