"""What sources may name and use.

A stranger's backend is the equal of ours; nothing from a network is unpickled; clocks, identity and chance come from a
runtime.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kits import ROOT

import rdzv_launcher
import rdzv_plugins
from rdzv_plugins.registry.manager import PluginHost

SRC = ROOT / "src"
NAMES_A_BACKEND = {
    "launcher/rdzv_launcher/run/request.py": "what flags of torchrun and torch_npu_run mean without --rdzv-backend",
    "rdzv_plugins/options.py": "values of the option store",
    "rdzv_plugins/elastic/options.py": "values of the option store",
    "rdzv_plugins/elastic/round_store.py": "values of the option store",
    "rdzv_plugins/testing/builtin.py": "the suite's harnesses of the backends that ship",
    "rdzv_plugins/testing/themes/launch.py": "torch's own c10d, from plain torchrun",
    "rdzv_plugins/testing/themes/plugin.py": "the built-in backend by which the time of loading is measured",
    "launcher/rdzv_launcher/bench/arguments.py": "the command of that name, which is gone",
    "launcher/rdzv_launcher/bench/store.py": "a way to the root",
    "launcher/rdzv_launcher/bench/nodes.py": "torch's own c10d and static",
}
RUNS_PROGRAMS = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "jsonpickle"}
CALLS = {"eval", "exec", "torch.load"}
OF_THIS_MACHINE = {
    # a call from Python: files and pipes between processes of one user, in a directory with mode 0700
    **{
        f"launcher/rdzv_launcher/python_api/{name}.py": {"pickle"}
        for name in ("agent", "function", "launching", "results", "spawned")
    },
    # a socket pair and a pipe between an agent and the supervisor that it has started
    "launcher/rdzv_launcher/run/supervisor/messages.py": {"marshal"},
    "launcher/rdzv_launcher/run/supervisor/worker_process.py": {"marshal"},
    # torch's state, which comes from a network: by an unpickler that makes nothing but a state
    "rdzv_plugins/backends/c10d/look.py": {"pickle"},
}
"""Which module may use what may run a program when it is read, and why that is safe."""


def nodes(pattern: str) -> Iterator[tuple[str, ast.AST]]:
    """The syntax of all sources in which the pattern is found."""
    for path in SRC.rglob("*.py"):
        if re.search(pattern, text := path.read_text()):
            yield from ((path.relative_to(SRC).as_posix(), node) for node in ast.walk(ast.parse(text)))


def test_nobody_else_names_a_backend() -> None:
    entries = [each for each in PluginHost.load().catalog.entries() if each.record.distribution == "rdzv-plugins"]
    names = {name for each in entries for name in (each.backend.name, *each.backend.aliases)}
    found = {
        where
        for where, node in nodes(rf"""["']({"|".join(names)})["']""")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    }
    assert {each for each in found if not each.startswith("rdzv_plugins/backends/")} == set(NAMES_A_BACKEND)


def used(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {each.name.partition(".")[0] for each in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {node.module.partition(".")[0]}
    return {ast.unparse(node.func)} if isinstance(node, ast.Call) else set()


def test_nothing_else_reads_what_may_run_a_program() -> None:
    bad, found = RUNS_PROGRAMS | CALLS, dict[str, set[str]]()
    for where, node in nodes("|".join(map(re.escape, bad))):
        if these := used(node) & bad:
            found.setdefault(where, set()).update(these)
    assert found == OF_THIS_MACHINE


HOMES = {each.__name__: Path(each.__file__ or "").parent for each in (rdzv_plugins, rdzv_launcher)}
CONTRACT = re.compile(r'(?ms)^name = "Whole agents run in simulated time.*?^source_modules = \[(.*?)\n\]')
FURTHER = ["rdzv_plugins." + room for room in ("backends.etcd", "security", "kit", "kvstore.sockets")]
OF_THE_SEAM = {("os", "getpid"), ("os", "urandom"), ("clock", "now"), ("clock", "now_ns")}
"""Module and name of what only the seam may call. The rest import-linter sees, and what goes through a set in its
order ``simulation/test_random_jobs.py`` finds in other processes.
"""


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
        if isinstance(node, ast.Attribute) and (ast.unparse(node.value), node.attr) in OF_THE_SEAM:
            yield f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.ImportFrom) and node.module in ("rdzv_plugins.clock", "os"):
            names = {(str(node.module).rpartition(".")[2], each.name) for each in node.names}
            if names & OF_THE_SEAM:
                yield f"line {node.lineno}: {ast.unparse(node)}"


def test_nothing_but_the_seam_is_asked() -> None:
    found = {str(file): list(wrong(ast.parse(file.read_text()))) for file in files()}
    assert len(found) > 80
    assert {file: what for file, what in found.items() if what} == {}


def test_no_two_public_classes_have_one_name() -> None:
    found = Counter(
        node.name
        for path in SRC.rglob("*.py")
        if "_generated" not in path.parts
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in found.items() if count > 1] == []
