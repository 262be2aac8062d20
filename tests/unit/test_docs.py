"""The documents say what the code says, and their links lead somewhere. Generated pages: `make lint`."""

import argparse
import inspect
import re
import sys
import types
from pathlib import Path

import pytest

from rdzv_launcher.bench import arguments as bench
from rdzv_launcher.run.command_line.options import Switch, Value
from rdzv_launcher.run.command_line.own import TITLE
from rdzv_launcher.run.command_line.parser import build_parser
from rdzv_launcher.run.own_options import OwnOptions
from rdzv_launcher.tools import conformance, logs, new_backend, serve, stacks, status
from rdzv_launcher.tools.timeline import command as timeline
from rdzv_launcher.tools.top import command as top
from rdzv_plugins import coordination
from rdzv_plugins.host import PluginRecord
from rdzv_plugins.host.validation import Validator
from rdzv_plugins.kvstore.native.limits import StoreLimits
from rdzv_plugins.options import describe_options

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMMAND_LINE = (DOCS / "reference/command-line.md").read_text()
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "native").glob("*.md")]
OURS = next(group for group in build_parser()._action_groups if group.title == TITLE)._group_actions


def section(text: str, heading: str) -> str:
    """From a heading to the next one of its level or above."""
    level = heading.partition(" ")[0]
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no heading {heading!r}"
    return found[1]


@pytest.mark.parametrize(
    ("heading", "options", "none"), [("## rdzv serve", StoreLimits, ""), ("## Restarts", OwnOptions, "unset")]
)
def test_options_are_those_of_the_code(heading: str, options: type, none: str) -> None:
    rows = [
        f"| `{info.name}` | {info.default or none} | {info.type} | {info.help} |" for info in describe_options(options)
    ]
    assert re.findall(r"^\| `\w+` \|.*$", section(COMMAND_LINE, heading), re.MULTILINE) == rows


def test_own_flags_and_their_variables_are_documented() -> None:
    table, variables = (
        section(COMMAND_LINE, heading) for heading in ("## Flags of rdzv-run", "## Environment variables")
    )
    for action in OURS:
        row = ", ".join(f"`{flag}`" for flag in action.option_strings if "_" not in flag)
        assert re.search(rf"^\| {re.escape(row)}[ |]", table, re.MULTILINE), row
        assert (f"`PET_{action.dest.upper()}`" in variables) == isinstance(action, Value | Switch), row


TOOLS = {
    "serve": serve,
    "logs": logs,
    "stacks": stacks,
    "timeline": timeline,
    "status": status,
    "top": top,
    "conformance": conformance,
    "new-backend": new_backend,
    **{f"bench {name}": bench for name in ("all", "report", "rendezvous", "launch", "faults", "store")},
}


def test_flags_of_the_tools_are_their_own() -> None:
    for words, tool in TOOLS.items():
        parser = argparse.ArgumentParser()
        tool.configure(parser.add_subparsers())
        for word in words.split():
            (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
            parser = commands.choices[word]
        shown = [each for each in parser._actions if each.help != argparse.SUPPRESS]  # not what is gone
        flags = {flag for each in shown for flag in each.option_strings if flag.startswith("--") and "_" not in flag}
        cells = re.findall(r"^\| (`--.*?) \|", section(COMMAND_LINE, f"## rdzv {words}"), re.MULTILINE)
        documented = {flag for cell in cells for flag in re.findall(r"`(--[a-z-]+)`", cell)}
        assert documented == flags - {"--help"}, words


def test_links_of_pages_outside_the_site_lead_somewhere() -> None:
    """Those within it: `mkdocs --strict`, in `make lint`."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "native").glob("*.md")]:
        for target in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", page.read_text()):
            assert re.match(r"[a-z]+:", target) or (page.parent / target).exists(), f"{page.name}: {target}"


def test_sketch_of_the_how_to_has_the_contract_of_a_coordination_backend(monkeypatch) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", (DOCS / "how-to/write-a-backend.md").read_text(), re.DOTALL)
    module = types.ModuleType("rdzv_how_to")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look there
    exec(source, vars(module))
    record = PluginRecord("myservice", module.__name__, "rdzv-myservice", "0.1.0", plugin=module)
    Validator().validate(record)
    assert not record.error
    service = record.backends[0].create(types.SimpleNamespace(endpoint="h:1", run_id="run"))
    session = module.MySession(types.SimpleNamespace(local_addr="10.0.0.2", remote_addr="10.0.0.1"), "/", 10.0, print)
    assert isinstance(service, coordination.CoordinationBackend)
    for ours, contract in ((service, coordination.CoordinationBackend), (session, coordination.Session)):
        for name, member in vars(contract).items():
            if not name.startswith("_"):
                assert hasattr(ours, name), name
                if inspect.isfunction(member):
                    assert call(getattr(type(ours), name)) == call(member), name


def call(function) -> list[tuple[str, object, object]]:
    """How it may be called."""
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]
