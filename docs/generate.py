"""Writes pages of docs/reference/ from the code: ``python docs/generate.py [--check]``.

They are hooks, options, errors, capabilities and metrics. A page has two parts. What is above its marker is written by
hand and kept; what is below comes from docstrings, from the options that the built-in backends declare, and from the
metrics that are declared. A hook, option, error or capability without its text stops the generator, which names all of
them. Nothing here imports torch: the pages are those of any machine.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rdzv_launcher.run.metrics.agent import AGENT
from rdzv_launcher.run.metrics.declared import Metric
from rdzv_launcher.run.metrics.store import STORE
from rdzv_plugins import errors, hookspecs
from rdzv_plugins.host import PluginHost
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.host.validation import HOOK_NAMES
from rdzv_plugins.interfaces import Backend, Capability
from rdzv_plugins.kit import DynamicSettings, ElasticOptions, TlsOptions, WorkerStoreOptions
from rdzv_plugins.options import describe_options

REFERENCE = Path(__file__).parent / "reference"
COMMAND = "python docs/generate.py"
MARKER = f"<!-- From here on written by `{COMMAND}`: change the docstrings, not this. -->\n"
OURS = "rdzv-plugins"
BASES = (WorkerStoreOptions, DynamicSettings, ElasticOptions, TlsOptions)
"""Options dataclasses from which plug-ins derive theirs."""

_FOR_SCHEDULERS = (
    "*Requeue*: what was wrong may be over, so the same job may be started again. *Do not requeue*: it would end in "
    "the same way again. *Look*: the code alone does not tell, the message does. Codes that are no error of ours, a "
    "worker's own among them, are in [Command line](command-line.md#exit-codes)."
)

_SECTION = re.compile(r"(Called|Arguments|Result|Errors|Example|Undeclared|Exit code):(.*)")
_WIDTH = 120


class Undocumented(Exception):
    """Something has no text; the message has one line for each."""


def sections(text: str) -> dict[str, str]:
    """A docstring by its sections; what stands before the first is under ``""``. Their texts are dedented."""
    found = {"": ""}
    name = ""
    for line in inspect.cleandoc(text).splitlines():
        start = _SECTION.fullmatch(line)
        if start:
            name, line = start[1], start[2].strip(": ")
        found[name] = f"{found.get(name, '')}{line}\n"
    return {name: _dedent(body) for name, body in found.items()}


def _dedent(body: str) -> str:
    """The first line may stand behind the section's name, at no indentation of its own."""
    first, _, rest = body.partition("\n")
    return f"{first}\n{textwrap.dedent(rest)}".strip()


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


def hooks(functions: Sequence[Callable[..., Any]]) -> str:
    """The page of hooks: one heading each, with everything that its docstring has to say."""
    missing, pages = [], []
    for function in functions:
        signature = inspect.signature(function)
        told = sections(inspect.getdoc(function) or "")
        arguments = dict(re.findall(r"^(\w+): (.*(?:\n +.*)*)", told.get("Arguments", ""), re.MULTILINE))
        needed = ["Called", "Result", "Errors", "Example", *(["Arguments"] if signature.parameters else [])]
        missing += [f"hook {function.__name__}: no summary"] if not told[""] else []
        missing += [f"hook {function.__name__}: no section {name!r}" for name in needed if not told.get(name)]
        missing += [
            f"hook {function.__name__}: argument {name!r} has no text"
            for name in set(signature.parameters) ^ set(arguments)
        ]
        pages.append("\n\n".join(_hook(function.__name__, signature, told, arguments)))
    _complain(missing)
    return "\n\n".join(pages)


def _hook(name: str, signature: inspect.Signature, told: dict[str, str], arguments: dict[str, str]) -> Iterator[str]:
    yield f"## `{name}({', '.join(signature.parameters)})`"
    yield markdown(told[""])
    yield f"```python\n{name}{signature}\n```".replace("'", "")
    yield markdown(f"**Called** {told.get('Called', '')}")
    if arguments:
        yield "\n".join(_fill(f"- ``{key}``: {' '.join(text.split())}", indent="  ") for key, text in arguments.items())
    yield markdown(f"**Result**: {told.get('Result', '')}")
    yield markdown(f"**Errors**: {told.get('Errors', '')}")
    yield f"```python\n{told.get('Example', '')}\n```"


def options(backends: Sequence[tuple[Backend, str]]) -> str:
    """The page of options: each backend with the docstring of its package, then where a key comes from."""
    missing, pages = [], []
    for backend, text in backends:
        missing += [f"backend {backend.name}: its package has no docstring"] if not text else []
        missing += list(_options_without_text(backend))
        pages.append("\n\n".join(_backend(backend, text)))
    _complain(missing)
    where: dict[str, list[str]] = {}
    for backend, _ in backends:
        for info in describe_options(backend.options):
            where.setdefault(info.name, []).append(f"`{backend.name}`")
    pages.append(
        "## All keys\n\n" + table(["key", "of"], [[f"`{key}`", ", ".join(of)] for key, of in sorted(where.items())])
    )
    pages.append(
        "## For options of your own\n\n"
        + _fill("A plug-in's options dataclass may derive from one of these; its keys come on top.")
        + "\n\n"
        + table(["class", "for", "brings"], [_base(cls) for cls in BASES])
    )
    return "\n\n".join(pages)


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
    rows = [
        [f"`{info.name}`", info.default or "unset", info.type, info.help] for info in describe_options(backend.options)
    ]
    yield table(["key", "default", "takes", "what"], rows) if rows else "It has no options."


def _base(cls: type) -> list[str]:
    keys = ", ".join(f"`{info.name}`" for info in describe_options(cls))
    return [f"`rdzv_plugins.kit.{cls.__name__}`", inspect.getdoc(cls) or "", keys]


def error_tree(classes: Sequence[type[errors.RdzvError]]) -> str:
    """The page of errors: the tree, the exit codes, and each class."""
    told = {cls: sections(vars(cls).get("__doc__") or "") for cls in classes}
    _complain([f"error {cls.__name__}: no docstring of its own" for cls in classes if not told[cls][""]])
    codes = {cls: told[cls].get("Exit code") or _code(cls.exit_code) for cls in classes}
    by_code: dict[str, list[type[errors.RdzvError]]] = {}
    for cls, code in sorted(codes.items(), key=lambda each: each[0].exit_code):
        by_code.setdefault(code, []).append(cls)
    _complain([f"exit code {code}: its classes differ in `scheduler`" for code, of in by_code.items() if _differ(of)])
    pages = [
        "## The tree",
        "```text\n" + "\n".join(_tree(classes[0], classes)) + "\n```",
        "## By exit code",
        _fill(_FOR_SCHEDULERS),
        table(["code", "a scheduler should", "classes"], [_row(code, of) for code, of in by_code.items()]),
    ]
    for cls in classes:
        summary, _, more = told[cls][""].partition("\n\n")
        parent = cls.__bases__[0].__name__ if cls is not classes[0] else "Exception"
        facts = f"Exit code: {codes[cls]}. Base: `{parent}`."
        if cls.remedy_text:
            facts += f" Remedy: {cls.remedy_text}"
        pages += [f"## {cls.__name__}", markdown(summary), *([markdown(more)] if more else []), _fill(facts)]
    return "\n\n".join(pages)


def _differ(classes: Sequence[type[errors.RdzvError]]) -> bool:
    return len({cls.scheduler for cls in classes}) > 1


def _row(code: str, classes: Sequence[type[errors.RdzvError]]) -> list[str]:
    return [code, classes[0].scheduler, ", ".join(f"[`{cls.__name__}`](#{cls.__name__.lower()})" for cls in classes)]


def _tree(cls: type[errors.RdzvError], classes: Sequence[type[errors.RdzvError]], depth: int = 0) -> Iterator[str]:
    yield "    " * depth + cls.__name__
    for child in classes:
        if cls in child.__bases__:
            yield from _tree(child, classes, depth + 1)


def _code(code: int) -> str:
    names = [name for name in dir(os) if name.startswith("EX_") and getattr(os, name) == code]
    return f"{code} ({names[0]})" if names else str(code)


def capabilities(kind: type[Capability], source: str, backends: Sequence[Backend]) -> str:
    """The page of capabilities: who declares which, and each one; ``source`` is that of the enumeration."""
    texts = {member: sections(text) for member, text in _texts_of_members(kind, source).items()}
    missing = [f"capability {member.name}: no docstring" for member in kind if member not in texts]
    missing += [
        f"capability {member.name}: no section 'Undeclared'"
        for member, told in texts.items()
        if "Undeclared" not in told
    ]
    _complain(missing)
    head = ["backend", *(f"`{member.name}`" for member in kind)]
    rows = [
        [f"`{each.name}`", *("yes" if member in each.capabilities else "no" for member in kind)] for each in backends
    ]
    pages = [table(head, rows)]
    for member, told in texts.items():
        declare = [f"`{each.name}`" for each in backends if member in each.capabilities]
        summary, _, more = told[""].partition("\n\n")
        pages += [f"## {member.name}", markdown(summary), *([markdown(more)] if more else [])]
        pages.append(_fill(f"Declared by {', '.join(declare) or 'no built-in backend'}. In lists: `{member.value}`."))
        pages.append(markdown(f"**Not declared**: {told['Undeclared']}"))
    return "\n\n".join(pages)


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


def _texts_of_members(kind: type[Capability], source: str) -> dict[Capability, str]:
    """The string that follows each member of the enumeration in its source."""
    (body,) = (node.body for node in ast.parse(textwrap.dedent(source)).body if isinstance(node, ast.ClassDef))
    return {
        kind[before.targets[0].id]: after.value.value
        for before, after in itertools.pairwise(body)
        if isinstance(before, ast.Assign) and isinstance(before.targets[0], ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
    }


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
        "hooks.md": hooks(sorted((getattr(hookspecs, name) for name in HOOK_NAMES), key=_line)),
        "options.md": options([(e.backend, inspect.getdoc(import_module(e.record.value)) or "") for e in entries]),
        "errors.md": error_tree(classes),
        "capabilities.md": capabilities(Capability, inspect.getsource(Capability), backends),
        "metrics.md": metrics([("Of an agent", AGENT), ("Of a store", STORE)]),
    }
    return {REFERENCE / name: _kept(REFERENCE / name) + "\n" + text + "\n" for name, text in written.items()}


def _line(function: Callable[..., Any]) -> int:
    return function.__code__.co_firstlineno


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
