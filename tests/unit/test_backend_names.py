"""A stranger's backend is the equal of ours: nothing but its own package, and what is listed here, names a backend."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdzv_plugins.host.manager import PluginHost

SOURCES = Path(__file__).resolve().parents[2] / "src"
NAMED_HERE = {
    "launcher/rdzv_launcher/run/request.py": "what flags of torchrun and torch_npu_run mean without --rdzv-backend",
    "rdzv_plugins/options.py": "values of the option store",
    "rdzv_plugins/elastic/options.py": "values of the option store",
    "rdzv_plugins/elastic/round_store.py": "values of the option store",
    "rdzv_plugins/testing/services.py": "the server that the suite starts, and its data",
    "rdzv_plugins/testing/builtin.py": "the suite's harnesses of the backends that ship",
    "rdzv_plugins/testing/themes/launch.py": "torch's own c10d, from plain torchrun",
    "rdzv_plugins/testing/themes/plugin.py": "the built-in backend by which the time of loading is measured",
    "launcher/rdzv_launcher/bench/arguments.py": "the command of that name, which is gone",
    "launcher/rdzv_launcher/bench/ways.py": "a way to the root",
    "launcher/rdzv_launcher/bench/jobs.py": "torch's own c10d and static, from plain torchrun",
    "launcher/rdzv_launcher/bench/nodes.py": "torch's own c10d and static",
}


@pytest.fixture(scope="module")
def names() -> frozenset[str]:
    ours = [
        entry.backend for entry in PluginHost.load().catalog.entries() if entry.record.distribution == "rdzv-plugins"
    ]
    return frozenset(name for backend in ours for name in (backend.name, *backend.aliases))


def _found(names: frozenset[str]) -> Iterator[tuple[str, str]]:
    for path in SOURCES.rglob("*.py"):
        where = path.relative_to(SOURCES).as_posix()
        if not where.startswith("rdzv_plugins/backends/"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names:
                    yield where, f"{where}:{node.lineno}: {node.value!r}"


def test_nobody_else_names_a_backend(names: frozenset[str]) -> None:
    found = list(_found(names))
    assert [line for where, line in found if not where.startswith(tuple(NAMED_HERE))] == []
    for each in NAMED_HERE:
        assert any(where.startswith(each) for where, _ in found), f"{each} names none any more"
