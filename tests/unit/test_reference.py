"""The generated reference is what the code says, leaves nothing out, and docs/explanation/compatibility.md is true."""

import ast
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import griffe
import pytest

from rdzv_plugins import capabilities, errors, hookspecs, option
from rdzv_plugins.host import PluginRecord
from rdzv_plugins.host.validation import HOOK_NAMES, Validator
from rdzv_plugins.interfaces import Backend, Capability
from rdzv_plugins.testing.suite import THEMES

ROOT = Path(__file__).parents[2]
COMPATIBILITY = (ROOT / "docs/explanation/compatibility.md").read_text()
WITHOUT_TORCH = """
import runpy, sys
sys.argv[1:] = ["--check"]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    assert "torch" not in sys.modules
"""


@pytest.fixture
def generate(tmp_path, monkeypatch) -> types.ModuleType:
    """The generator, which writes into a copy of the pages, and has done so."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shutil.copytree(module.REFERENCE, tmp_path / "reference")
    monkeypatch.setattr(module, "REFERENCE", tmp_path / "reference")
    assert module.main([]) == 0
    return module


def test_pages_are_what_the_generator_writes_without_torch() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH.replace("sys.argv[0]", repr(str(ROOT / "docs/generate.py")))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["options", "errors", "capabilities"])
def test_a_page_that_was_changed_is_found_and_written_again_but_for_its_beginning(generate, capsys, name) -> None:
    page = generate.REFERENCE / f"{name}.md"
    whole = page.read_text()
    page.write_text("By hand.\n" + whole + "By mistake.\n")
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().out == f"{name}.md: not what the code says; run: python docs/generate.py\n"
    assert generate.main([]) == 0
    assert page.read_text() == "By hand.\n" + whole
    assert generate.main(["--check"]) == 0


def test_exit_codes_of_which_a_scheduler_is_told_two_things_stop_the_generator(generate, capsys, monkeypatch) -> None:
    class Torn(errors.UsageError):
        scheduler = "requeue"

    monkeypatch.setattr(errors, "Torn", Torn, raising=False)
    assert generate.main([]) == 1
    assert capsys.readouterr().err == "undocumented:\n  exit code 2: its classes differ in `scheduler`\n"


def test_an_option_without_help_or_unit_is_found(generate) -> None:
    @dataclass(frozen=True)
    class Options:
        mute: int = option(1, help="")
        timeout: float = option(1, help="Whose unit is left to guess.")
        ratio: float | None = option(None, help="The same.", minimum=0)

    backend = Backend("toy", "a toy", create=print, options=Options)
    with pytest.raises(generate.Undocumented) as caught:
        generate.options([(backend, "")])
    assert str(caught.value).splitlines() == [
        "backend toy: its package has no docstring",
        "backend toy: option 'mute' has no help",
        "backend toy: option 'ratio' has no unit",
        "backend toy: option 'timeout' has no unit",
    ]


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


def test_each_error_has_a_text() -> None:
    silent = [name for name, each in written(errors).classes.items() if not each.docstring]
    assert not silent


def test_each_capability_has_a_text_that_says_what_follows_where_it_is_not_declared() -> None:
    members = written(capabilities)["Capability"].attributes
    assert members.keys() == Capability.__members__.keys()
    for member in members.values():
        assert {key for key, text in sections(member.docstring).items() if text.strip()} == {"", "Undeclared"}


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


@pytest.mark.parametrize("name", listed("public names"))
def test_public_names_are_those_that_are_listed(name) -> None:
    module = importlib.import_module(name)
    public, internal = listed("public names")[name], listed("internal names").get(name, [])
    assert sorted(public + internal) == sorted(names_of(module))
    assert public == sorted(public)
    for each in public:
        getattr(module, each)


@pytest.mark.parametrize("name", sorted({*listed("public names")} - {"rdzv_plugins", "rdzv_plugins.hookspecs"}))
def test_the_docstrings_of_a_public_module_are_on_a_page(name) -> None:
    shown = set()
    for page in (ROOT / "docs/reference").glob("*.md"):
        shown |= set(re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE))
    assert name in shown


def test_names_of_the_package_are_public_by_their_long_path_too() -> None:
    public = listed("public names")
    short = set(public.pop("rdzv_plugins"))
    assert short <= {name for names in public.values() for name in names}


def test_internal_names_are_of_public_modules() -> None:
    assert set(listed("internal names")) <= set(listed("public names"))


def test_themes_of_the_suite_are_those_that_are_explained() -> None:
    text = (ROOT / "docs/explanation/conformance.md").read_text()
    table = re.search(r"\| theme \| promises \|\n\|---\|---\|\n((?:\|.*\n)+)", text)[1]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == THEMES
    testing = importlib.import_module("rdzv_plugins.testing")
    classes = {name for name in testing.__all__ if name.endswith("Theme")}
    assert {getattr(testing, name).theme for name in classes} == set(THEMES)


FOR_AUTHORS = [
    *ROOT.glob("examples/rdzv-*/src/**/*.py"),
    *ROOT.glob("examples/rdzv-*/tests/*.py"),
    *ROOT.glob("src/launcher/rdzv_launcher/tools/skeleton/**/*.py.txt"),
    *ROOT.glob("docs/how-to/write-a-backend.md"),
    *ROOT.glob("docs/tutorial/*.md"),
    Path(hookspecs.__file__),
]


@pytest.mark.parametrize("path", FOR_AUTHORS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_authors_are_shown_is_public(path) -> None:
    public = listed("public names")
    text = path.read_text()
    imports = re.findall(r"^\s*from (rdzv_plugins[\w.]*) import (\([^)]*\)|.*)$", text, re.MULTILINE)
    imports += [(name, "") for name in re.findall(r"^\s*import (rdzv_plugins[\w.]*)", text, re.MULTILINE)]
    for module, names in imports:
        assert module in public
        assert {name.split(" as ")[0].strip() for name in re.sub(r"#.*|[()]", "", names).split(",")} - {"", "*"} <= set(
            public[module]
        )
