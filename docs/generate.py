"""Writes pages of docs/reference/ from the code: ``python docs/generate.py [--check]``.

They are tables of what is declared: options of the built-in backends, exit codes of errors, capabilities, metrics. What
docstrings say is put into the site by mkdocstrings, where a page has a line that begins with ``:::``. A page has two
parts: what is above its marker is written by hand and kept; of command-line.md it is what is between two markers that
is written. An option without its text stops the generator, which names all of them. Nothing here imports torch: the
pages are those of any machine.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from griffe import Docstring

from rdzv_launcher.bench import arguments as bench
from rdzv_launcher.run.agent_metrics import AGENT
from rdzv_launcher.run.metrics import STORE, Metric
from rdzv_launcher.run.options import OPTIONS, RunOptions, flag_of, help_of
from rdzv_launcher.tools import conformance, doctor, logs, new_backend, serve, stacks, status, timeline, top
from rdzv_plugins import errors
from rdzv_plugins.interfaces import Backend, Capability
from rdzv_plugins.kit import DynamicSettings, ElasticOptions, TlsOptions, WorkerStoreOptions
from rdzv_plugins.options import OptionInfo, describe_options
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.catalog import Entry

REFERENCE = Path(__file__).parent / "reference"
COMMAND = "python docs/generate.py"
MARKER = f"<!-- From here on written by `{COMMAND}`: change the docstrings, not this. -->\n"
OPTIONS_BEGIN = f"<!-- From here on written by `{COMMAND}`: change src/launcher/rdzv_launcher/run/options.py. -->\n"
OPTIONS_END = "<!-- Up to here. -->\n"
FIRST_OWN = "exit_barrier_timeout"
"""The first option of ``rdzv-run`` that torchrun does not have."""
OURS = "rdzv-plugins"
TOOLS = (bench, conformance, doctor, logs, new_backend, serve, stacks, status, timeline, top)
BASES = (WorkerStoreOptions, DynamicSettings, ElasticOptions, TlsOptions)
"""Options dataclasses from which plug-ins derive theirs."""

_FOR_SCHEDULERS = (
    "*Requeue*: what was wrong may be over, so the same job may be started again. *Do not requeue*: it would end in "
    "the same way again. *Look*: the code alone does not tell, the message does. Codes that are no error of ours, a "
    "worker's own among them, are in [Command line](command-line.md#exit-codes)."
)

_CODE = re.compile(
    r"--rdzv-conf \w+=[\w|:.\[\]-]+|--[a-z][a-z_-]*\w(=[\w|,.@]*\w)?|/?[A-Z]{3,}_[A-Z_]+(=[\w,.]*\w)?|/[a-z]+\b"
)
_FLAGS = re.compile(r"(<!-- flags of rdzv ([\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH = 120
_WHERE = (
    "A git host shows no docstrings here: they are in "
    "[src/rdzv_plugins/{file}.py](../../src/rdzv_plugins/{file}.py).\n\n"
    "::: rdzv_plugins.{path}\n    options:\n      heading_level: 3\n      {option}: {value}"
)
"""The rest of a page: for the site, the docstrings of a module or class."""


class Undocumented(Exception):
    """Something has no text; the message has one line for each."""


def markdown(text: str) -> str:
    """Paragraphs of a docstring as those of a page: code in single backticks, lines filled."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(_fill(" ".join(each.split())) for each in paragraphs)


def _fill(text: str, indent: str = "") -> str:
    text = text.replace("``", "`")
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are one line each."""
    lines = [f"| {' | '.join(map(_cell, line))} |" for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def options(backends: Sequence[tuple[Backend, str]]) -> str:
    """The page of options: each backend with the docstring of its package, then every key once, with whose it is."""
    missing, pages = [], []
    for backend, text in backends:
        missing += [f"backend {backend.name}: its package has no docstring"] if not text else []
        missing += list(_options_without_text(backend))
        pages.append("\n\n".join(_backend(backend, text)))
    _complain(missing)
    pages.append("## All keys\n\n" + table(["key", "of", "default", "takes", "what"], _keys([b for b, _ in backends])))
    pages.append(
        "## For options of your own\n\n"
        + _fill("A plug-in's options dataclass may derive from one of these; its keys come on top.")
        + "\n\n"
        + table(["class", "for", "brings"], [_base(cls) for cls in BASES])
    )
    return "\n\n".join(pages)


def _keys(backends: Sequence[Backend]) -> Iterator[list[str]]:
    """A row for each key, in the order of declaration; several, one below the other, where backends differ in it."""
    longest_first = sorted(backends, key=lambda backend: -len(describe_options(backend.options)))
    rows: dict[str, dict[OptionInfo, list[str]]] = {}
    for backend in longest_first:
        for info in describe_options(backend.options):
            rows.setdefault(info.name, {}).setdefault(info, []).append(f"`{backend.name}`")
    for key, variants in rows.items():
        for info, of in variants.items():
            yield [f"`{key}`", ", ".join(sorted(of)), info.default or "unset", info.type, info.help]


def _options_without_text(backend: Backend) -> Iterator[str]:
    for info in describe_options(backend.options):
        if not info.help:
            yield f"backend {backend.name}: option {info.name!r} has no help"
        if info.type.startswith("a number") and not info.unit:
            yield f"backend {backend.name}: option {info.name!r} has no unit"


def _backend(backend: Backend, text: str) -> Iterator[str]:
    yield f"## {backend.name}"
    text = text.removeprefix(f"``{backend.name}``: ")
    yield markdown(text[:1].upper() + text[1:])
    notes = []
    if backend.aliases:
        notes.append(f"Also by the name {', '.join(f'`{alias}`' for alias in backend.aliases)}.")
    if backend.install:
        notes.append(f"Install it with `{backend.install}`.")
    if notes:
        yield _fill(" ".join(notes))


def _base(cls: type) -> list[str]:
    keys = ", ".join(f"`{info.name}`" for info in describe_options(cls))
    return [f"`rdzv_plugins.kit.{cls.__name__}`", inspect.getdoc(cls) or "", keys]


def error_tree(classes: Sequence[type[errors.RdzvError]]) -> str:
    """The page of errors: the tree, the exit codes, and the classes."""
    by_code: dict[str, list[type[errors.RdzvError]]] = {}
    for cls in sorted(classes, key=lambda each: each.exit_code):
        by_code.setdefault(_told_code(cls) or _code(cls.exit_code), []).append(cls)
    _complain([f"exit code {code}: its classes differ in `scheduler`" for code, of in by_code.items() if _differ(of)])
    pages = [
        "## The tree",
        "```text\n" + "\n".join(_tree(classes[0], classes)) + "\n```",
        "## By exit code",
        _fill(_FOR_SCHEDULERS),
        table(["code", "a scheduler should", "classes"], [_row(code, of) for code, of in by_code.items()]),
        "## The classes",
        _WHERE.format(file="errors", path="errors", option="show_if_no_docstring", value="true"),
    ]
    return "\n\n".join(pages)


def _told_code(cls: type[errors.RdzvError]) -> str:
    """What its docstring says of the exit code, where that is not a number alone."""
    parts = Docstring(inspect.cleandoc(vars(cls).get("__doc__") or "")).parse("google")
    return next((part.value.description.rstrip(".") for part in parts if part.title == "Exit code"), "")


def _differ(classes: Sequence[type[errors.RdzvError]]) -> bool:
    return len({cls.scheduler for cls in classes}) > 1


def _row(code: str, classes: Sequence[type[errors.RdzvError]]) -> list[str]:
    return [code, classes[0].scheduler, ", ".join(f"`{cls.__name__}`" for cls in classes)]


def _tree(cls: type[errors.RdzvError], classes: Sequence[type[errors.RdzvError]], depth: int = 0) -> Iterator[str]:
    yield "    " * depth + cls.__name__
    for child in classes:
        if cls in child.__bases__:
            yield from _tree(child, classes, depth + 1)


def _code(code: int) -> str:
    names = [name for name in dir(os) if name.startswith("EX_") and getattr(os, name) == code]
    return f"{code} ({names[0]})" if names else str(code)


def capabilities(kind: type[Capability], backends: Sequence[Backend]) -> str:
    """The page of capabilities: who declares which, and each."""
    head = ["backend", *(f"`{member.name}`" for member in kind)]
    rows = [
        [f"`{each.name}`", *("yes" if member in each.capabilities else "no" for member in kind)] for each in backends
    ]
    each = _WHERE.format(file="interfaces", path="interfaces.Capability", option="show_bases", value="false")
    return f"{table(head, rows)}\n\n## Each of them\n\n{each}"


def metrics(declared: Sequence[tuple[str, Sequence[Metric]]]) -> str:
    """The page of metrics: a table for each kind of process, with the names under which values are stored."""
    head = ["name", "type", "labels", "what"]
    pages = []
    for heading, of in declared:
        rows = [
            [f"`{each.sample}`", each.kind, ", ".join(f"`{name}`" for name in each.labels), each.help] for each in of
        ]
        pages += [f"## {heading}", table(head, rows)]
    return "\n\n".join(pages)


def run_options() -> str:
    """The table of the options of ``rdzv-run`` that torchrun does not have."""
    rows = []
    for info in describe_options(RunOptions)[list(OPTIONS).index(FIRST_OWN) :]:
        metadata = OPTIONS[info.name].metadata
        names = [f"`{each}`" for each in (metadata.get("short"), flag_of(info.name)) if each]
        if "flag" not in metadata:
            names = [f"`--rdzv-conf {info.name}=`"]
        takes = (
            metadata.get("metavar", info.type) if info.type == "text" or info.name == "rdzv_no_plugin" else info.type
        )
        takes = "" if metadata.get("flag") and info.type == "true or false" else takes
        default = {"False": "off", "": "none", None: "none", "0.0": "0"}.get(info.default, info.default)
        rows.append([", ".join(names), default or "", takes, _CODE.sub(r"`\g<0>`", help_of(info.name))])
    return table(["option", "default", "takes", "does"], rows)


def tool_flags(command: str) -> str:
    """The table of the flags of ``rdzv COMMAND``, from its parser."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for tool in TOOLS:
        tool.configure(commands)
    for word in command.split():
        (choices,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
        parser = choices.choices[word]
    shown = (each for each in parser._actions if each.help != argparse.SUPPRESS and each.dest != "help")
    return table(["flag", "does"], [_flag(each) for each in shown])


def _flag(action: argparse.Action) -> list[str]:
    names = [each for each in action.option_strings if "_" not in each]  # both spellings are taken
    value = "" if action.nargs == 0 else str(action.metavar or "|".join(action.choices or ()) or action.dest.upper())
    shown = [f"`{name}`" for name in names] or [f"`{value}`"]
    text = str(action.help) % (vars(action) | {"prog": "rdzv"})
    return [", ".join(shown) + (f" {value}" if names and value else ""), re.sub(r"--[a-z-]*[a-z]", r"`\g<0>`", text)]


def _complain(missing: Sequence[str]) -> None:
    if missing:
        raise Undocumented("\n".join(sorted(missing)))


def built_in() -> list[Entry]:
    """Our own backends, by name."""
    found = [entry for entry in PluginHost.load().catalog.entries() if entry.record.distribution == OURS]
    return sorted(found, key=lambda entry: entry.backend.name)


def pages() -> dict[Path, str]:
    """What the files have to be. Raises ``Undocumented``, and ``ValueError`` for a file without the marker."""
    entries = built_in()
    backends = [entry.backend for entry in entries]
    classes = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.RdzvError)]
    written = {
        "options.md": options([(e.backend, inspect.getdoc(import_module(e.record.value)) or "") for e in entries]),
        "errors.md": error_tree(classes),
        "capabilities.md": capabilities(Capability, backends),
        "metrics.md": metrics([("Of an agent", AGENT), ("Of a store", STORE)]),
    }
    found = {REFERENCE / name: _kept(REFERENCE / name) + "\n" + text + "\n" for name, text in written.items()}
    path = REFERENCE / "command-line.md"
    before, _, rest = path.read_text().partition(OPTIONS_BEGIN)
    _, marker, after = rest.partition(OPTIONS_END)
    if not marker:
        raise ValueError(f"{path} has no lines {OPTIONS_BEGIN.strip()!r} and {OPTIONS_END.strip()!r}")
    after = _FLAGS.sub(lambda block: f"{block[1]}\n{tool_flags(block[2])}\n\n{block[3]}", after)
    return found | {path: f"{before}{OPTIONS_BEGIN}\n{run_options()}\n\n{OPTIONS_END}{after}"}


def _kept(path: Path) -> str:
    by_hand, marker, _ = path.read_text().partition(MARKER)
    if not marker:
        raise ValueError(f"{path} has no line {MARKER.strip()!r}")
    return by_hand + marker


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or with ``--check`` say which differ. Exit code 1 if one does, or if a text is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not what it should be")
    check = parser.parse_args(argv).check
    try:
        wanted = pages()
    except Undocumented as error:
        print(f"undocumented:\n{textwrap.indent(str(error), '  ')}", file=sys.stderr)
        return 1
    old = [path for path, text in wanted.items() if path.read_text() != text]
    for path in old:
        if not check:
            path.write_text(wanted[path])
        print(f"{path.name}: {'not what the code says; run: ' + COMMAND if check else 'written'}")
    return int(check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
