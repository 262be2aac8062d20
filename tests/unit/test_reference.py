"""What the reference takes from the code is there, and docs/explanation/compatibility.md is true."""

import ast
import importlib
import inspect
import re
import textwrap
import types
from pathlib import Path

import pytest

from rdzv_plugins import hookspecs
from rdzv_plugins.host import PluginRecord
from rdzv_plugins.host.validation import HOOK_NAMES, Validator

ROOT = Path(__file__).parents[2]
COMPATIBILITY = (ROOT / "docs/explanation/compatibility.md").read_text()


@pytest.mark.parametrize("name", HOOK_NAMES)
def test_the_example_of_a_hook_is_a_plugin_with_that_hook(name) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", inspect.getdoc(getattr(hookspecs, name)), re.DOTALL)
    module = types.ModuleType("example")
    exec(textwrap.dedent(example), vars(module))
    record = PluginRecord("example", "example", "rdzv-example", "1.0", plugin=module)
    Validator().validate(record)
    assert not record.error
    assert callable(getattr(module, name))


def listed(heading: str) -> dict[str, list[str]]:
    """A table of modules and names."""
    rows = re.search(rf"\| module \| {heading} \|\n\|---\|---\|\n((?:\|.*\n)+)", COMPATIBILITY)[1].splitlines()
    return {name: names for name, *names in (re.findall(r"`([\w.]+)`", row) for row in rows)}


def names_of(module: types.ModuleType) -> set[str]:
    """What a module says is its own, or defines without an underscore; of its imports only ``X as X``."""
    if hasattr(module, "__all__"):
        return set(module.__all__)
    body = ast.parse(Path(module.__file__).read_text()).body
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {target.id for node in body if isinstance(node, ast.Assign) for target in node.targets}
    names |= {node.target.id for node in body if isinstance(node, ast.AnnAssign)}
    imported = (each for node in body if isinstance(node, ast.ImportFrom) for each in node.names)
    return {name for name in names | {each.name for each in imported if each.asname == each.name} if name[0] != "_"}


def test_public_names_are_those_that_are_listed() -> None:
    public, internal = listed("public names"), listed("internal names")
    for name, names in public.items():
        module = importlib.import_module(name)
        assert sorted(names + internal.get(name, [])) == sorted(names_of(module)), name
        assert all(hasattr(module, each) for each in names)
    assert set(internal) <= set(public)
    short = set(public.pop("rdzv_plugins"))
    assert short <= {name for names in public.values() for name in names}, "public by their long path, too"


FOR_AUTHORS = [
    *ROOT.glob("examples/rdzv-*/src/**/*.py"),
    *ROOT.glob("examples/rdzv-*/tests/*.py"),
    *ROOT.glob("src/launcher/rdzv_launcher/tools/skeleton/**/*.py.txt"),
    *ROOT.glob("docs/how-to/write-a-backend.md"),
    *ROOT.glob("docs/tutorial/*.md"),
    Path(hookspecs.__file__),
]


def test_what_authors_are_shown_is_public() -> None:
    public = {name: {"", "*", *names} for name, names in listed("public names").items()}
    for path in FOR_AUTHORS:
        text = path.read_text()
        imports = re.findall(r"^\s*from (rdzv_plugins[\w.]*) import (\([^)]*\)|.*)$", text, re.MULTILINE)
        imports += [(name, "") for name in re.findall(r"^\s*import (rdzv_plugins[\w.]*)", text, re.MULTILINE)]
        for module, names in imports:
            shown = {name.split(" as ")[0].strip() for name in re.sub(r"#.*|[()]", "", names).split(",")}
            assert shown <= public[module], f"{path.name}: {module}"
