"""``rdzv new-backend NAME``: creates a package for a backend of one's own, with its tests, as a starting point.

The files are templates in ``skeleton/``: ``both`` and one folder for each kind. A template's name ends in ``.txt``.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rdzv_plugins.errors import UsageError

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_SKELETON = Path(__file__).parent / "skeleton"
_HIDDEN = {"gitignore": ".gitignore"}
"""Files that tools would pick up as their own if a template had that name."""
_DIRECTORY = "MODULE"
_NEXT = {
    "state": """\
    rdzv conformance {name}
    mkdir shared
    rdzv-run --rdzv-backend={name} --rdzv-endpoint=$PWD/shared --nnodes=1 train.py

It works as it is. Replace the parts marked YOUR OWN with your own system.
""",
    "coordination": """\
    rdzv conformance {name} --theme plugin,backend

The tests stop at the first method that is not written yet. Start with src/{module}/client.py.
""",
}


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    add = commands.add_parser("new-backend", help="create a package for your own backend, with tests").add_argument
    add("name", metavar="NAME", help="the backend's name, as given to --rdzv-backend; the package will be rdzv-NAME")
    kind = (
        "state: one value with compare-and-swap, works as it is (default); coordination: sessions, keys "
        "and watches, whose requests you write"
    )
    add("--kind", choices=tuple(_NEXT), default="state", help=kind)
    add("--directory", metavar="DIR", help="where to put the package; must not exist (default: ./rdzv-NAME)")


def run(args: argparse.Namespace) -> int:
    """Write it, and say what to do next. Raises ``UsageError`` for a taken name or directory, or an invalid name."""
    name = _checked(args.name)
    words = {
        "NAME": name,
        "PACKAGE": f"rdzv-{name}",
        "MODULE": f"rdzv_{name.replace('-', '_')}",
        "CLASS": "".join(part.capitalize() for part in name.split("-")),
        "VERSIONS": _versions(),
    }
    directory = Path(args.directory or words["PACKAGE"])
    files = _write(directory, args.kind, words)
    print(f"Created backend {name!r} of kind {args.kind} in {directory}:\n")
    print("".join(f"    {file}\n" for file in files))
    print(f"Next:\n\n    cd {directory}\n    python -m pip install -e '.[test]'\n    rdzv backends")
    print(_NEXT[args.kind].format(name=name, module=words["MODULE"]), end="", flush=True)
    return 0


def _checked(name: str) -> str:
    """``name``, if a backend may have it."""
    from rdzv_plugins.installed import normalise
    from rdzv_plugins.registry import PluginHost
    from rdzv_plugins.registry.catalog import DROPPED

    if name.startswith(("rdzv-", "rdzv_")):
        raise UsageError(f"{name!r} is a package name", remedy=f"Give the backend's name: rdzv new-backend {name[5:]}")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid backend name",
            remedy="Use lower-case letters, digits and single hyphens, starting with a letter: foo-2",
        )
    other = "Choose another name. To see what is installed: rdzv backends"
    host = PluginHost.load()
    for record in host.records:
        names = [record.name, *(each for backend in record.backends for each in (backend.name, *backend.aliases))]
        if name in map(normalise, names):
            raise UsageError(f"{record.distribution} {record.version} already has a backend {name!r}", remedy=other)
    if name in DROPPED:
        raise UsageError(f"{name!r} is reserved: {DROPPED[name][0]}", remedy=other)
    try:
        there = version(f"rdzv-{name}")
    except PackageNotFoundError:
        return name
    raise UsageError(f"package rdzv-{name} {there} is already installed", remedy=other)


def _versions() -> str:
    """The versions covered by the compatibility policy: from this minor release to the next major one."""
    major, minor = version("rdzv-plugins").split(".")[:2]
    return f">={major}.{minor},<{int(major) + 1}"


def _write(directory: Path, kind: str, words: Mapping[str, str]) -> list[str]:
    """Write the files; returns their paths inside ``directory``. Leaves nothing behind if it fails."""
    try:
        directory.mkdir()
    except FileExistsError:
        raise UsageError(f"{directory} already exists", remedy="Choose a new directory with --directory=DIR.") from None
    except OSError as error:
        raise UsageError(
            f"cannot create {directory}: {error.strerror}", remedy="Give a --directory=DIR that you may write to."
        ) from None
    files = []
    try:
        for folder in (_SKELETON / "both", _SKELETON / kind):
            for template in folder.rglob("*.txt"):
                name = template.name.removesuffix(".txt")
                parts = template.relative_to(folder).parent.parts
                file = Path(
                    *(words["MODULE"] if part == _DIRECTORY else part for part in parts), _HIDDEN.get(name, name)
                )
                text = re.sub(r"@([A-Z]+)@", lambda found: words[found[1]], template.read_text("utf-8"))
                (directory / file).parent.mkdir(parents=True, exist_ok=True)
                (directory / file).write_text(text, "utf-8")
                files.append(file)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return sorted(map(str, files))
