"""What may run a program when it is read comes from this machine alone: nothing that a network brought is unpickled."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
RUNS_PROGRAMS = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "jsonpickle"}
CALLS = {"eval", "exec"}

OF_THIS_MACHINE = {
    # a call from Python: files and pipes between processes of one user, in a directory with mode 0700
    "launcher/rdzv_launcher/call/agent.py": {"pickle"},
    "launcher/rdzv_launcher/call/function.py": {"pickle"},
    "launcher/rdzv_launcher/call/launching.py": {"pickle"},
    "launcher/rdzv_launcher/call/results.py": {"pickle"},
    "launcher/rdzv_launcher/call/spawned.py": {"pickle"},
    # a socket pair and a pipe between an agent and the keeper that it has started
    "launcher/rdzv_launcher/run/keeper/channel.py": {"marshal"},
    "launcher/rdzv_launcher/run/keeper/worker_process.py": {"marshal"},
    # torch's state, which comes from a network: by an unpickler that makes nothing but a state
    "rdzv_plugins/backends/c10d/look.py": {"pickle"},
}
"""Which module may use what, and why that is safe."""


def used(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield node.func.id
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
            yield "torch.load"


def test_nothing_else_reads_what_may_run_a_program() -> None:
    bad = RUNS_PROGRAMS | CALLS | {"torch.load"}
    found = {}
    for path in SRC.rglob("*.py"):
        text = path.read_text()
        if any(each in text for each in bad) and (these := set(used(ast.parse(text))) & bad):
            found[path.relative_to(SRC).as_posix()] = these
    assert found == OF_THIS_MACHINE
