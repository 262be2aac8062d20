"""The documents say what the code says, where `make lint` has no check: tables by hand, public names, examples."""

import ast
import importlib
import inspect
import re
import sys
import textwrap
import types
from pathlib import Path

from kits import ROOT

from rdzv_plugins import hookspecs
from rdzv_plugins.registry import PluginRecord
from rdzv_plugins.registry.discovery import HOOK_NAMES, validate

COMPATIBILITY = (ROOT / "docs/reference/compatibility.md").read_text()


def test_links_of_pages_outside_the_site_lead_somewhere() -> None:
    """Those within it: `mkdocs --strict`, in `make lint`."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "native").glob("*.md")]:
        for target in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", page.read_text()):
            assert re.match(r"[a-z]+:", target) or (page.parent / target).exists(), f"{page.name}: {target}"


def plugin_of(text: str, monkeypatch) -> PluginRecord:
    """The first program in a text, as a plug-in that is taken."""
    source = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    module = types.ModuleType("rdzv_example")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look there
    exec(textwrap.dedent(source), vars(module))
    record = PluginRecord("example", "rdzv_example", "rdzv-example", "1.0", plugin=module)
    validate(record)
    assert not record.error
    return record


def test_examples_are_plugins_with_what_they_show(monkeypatch) -> None:
    for name in HOOK_NAMES:
        record = plugin_of(inspect.getdoc(getattr(hookspecs, name)), monkeypatch)
        assert callable(getattr(record.plugin, name))


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
        assert sorted(names + internal.get(name, [])) == sorted(names_of(importlib.import_module(name))), name
    assert set(internal) <= set(public)
    short = set(public.pop("rdzv_plugins"))
    assert short <= {name for names in public.values() for name in names}, "public by their long path, too"


def test_what_authors_are_shown_is_public() -> None:
    public = {name: {"", "*", *names} for name, names in listed("public names").items()}
    shown = [*ROOT.glob("examples/rdzv-*/src/**/*.py"), *ROOT.glob("examples/rdzv-*/tests/*.py")]
    shown += ROOT.glob("src/launcher/rdzv_launcher/tools/skeleton/**/*.py.txt")
    for path in [*shown, *ROOT.glob("docs/plugins/*.md"), Path(hookspecs.__file__)]:
        text = path.read_text()
        imports = re.findall(r"^\s*from (rdzv_plugins[\w.]*) import (\([^)]*\)|.*)$", text, re.MULTILINE)
        imports += [(name, "") for name in re.findall(r"^\s*import (rdzv_plugins[\w.]*)", text, re.MULTILINE)]
        for module, names in imports:
            given = {name.split(" as ")[0].strip() for name in re.sub(r"#.*|[()]", "", names).split(",")}
            assert given <= public[module], f"{path.name}: {module}"
