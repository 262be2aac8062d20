"""What the reference takes from the code is there, and docs/explanation/compatibility.md is true."""

import ast
import importlib
import re
import types
from pathlib import Path

import griffe
import pytest

from rdzv_plugins import hookspecs
from rdzv_plugins.host import PluginRecord
from rdzv_plugins.host.validation import HOOK_NAMES, Validator

ROOT = Path(__file__).parents[2]
COMPATIBILITY = (ROOT / "docs/explanation/compatibility.md").read_text()


def sections(docstring: griffe.Docstring) -> dict[str, str]:
    """What mkdocstrings makes of a docstring: its sections by their titles, the arguments by their names."""
    found = {}
    for section in docstring.parse("google"):
        if section.kind is griffe.DocstringSectionKind.parameters:
            found |= {f"({each.name})": each.description for each in section.value}
        else:
            found[section.title or ""] = getattr(section.value, "description", section.value)
    return found


def written(module: types.ModuleType) -> griffe.Module:
    path = Path(module.__file__)
    return griffe.visit(module.__name__, path, path.read_text())


@pytest.mark.parametrize("name", HOOK_NAMES)
def test_a_hook_is_documented_and_its_example_is_a_plugin_with_that_hook(name) -> None:
    hook = written(hookspecs)[name]
    told = sections(hook.docstring)
    arguments = {f"({parameter.name})" for parameter in hook.parameters}
    assert {key for key, text in told.items() if text.strip()} == {
        *("", "Called", "Result", "Errors", "Example"),
        *arguments,
    }
    page = (ROOT / "docs/reference/hooks.md").read_text()
    assert f"\n## `{name}`\n\n::: rdzv_plugins.hookspecs.{name}\n" in page
    (example,) = re.findall(r"```python\n(.*?)```", told["Example"], re.DOTALL)
    module = types.ModuleType("example")
    exec(example, vars(module))
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
    names = set()
    for node in ast.parse(Path(module.__file__).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names |= {target.id for target in (node.targets if isinstance(node, ast.Assign) else [node.target])}
        elif isinstance(node, ast.ImportFrom):
            names |= {each.name for each in node.names if each.asname == each.name}
    return {name for name in names if not name.startswith("_")}


def test_public_names_are_those_that_are_listed() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    public, internal = listed("public names"), listed("internal names")
    for name, names in public.items():
        module = importlib.import_module(name)
        assert sorted(names + internal.get(name, [])) == sorted(names_of(module)), name
        assert names == sorted(names)
        assert all(hasattr(module, each) for each in names)
        assert name in ("rdzv_plugins", "rdzv_plugins.hookspecs") or f"\n::: {name}\n" in pages
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
