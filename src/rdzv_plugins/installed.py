"""What is installed: distributions with their versions and entry points, as ``importlib.metadata`` finds them.

Importing that module, and having it read what each distribution says about itself, takes longer than all other work of
plug-ins when an agent starts: it parses whole descriptions as e-mails. Here folders are listed, and a file of a few
lines is read for each distribution. If distributions may be somewhere other than in folders (a zip file, a finder that
somebody has added), that module is asked after all. Source of the format: packaging.python.org, "Entry points
specification".
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any

_ENTRY_POINT = re.compile(r"(?P<module>[\w.]+)\s*(:\s*(?P<attributes>[\w.]+)\s*)?(\[.*\]\s*)?$")
_SEPARATORS = re.compile(r"[-_.]+")
_METADATA = ("METADATA", "PKG-INFO")


class EntryPoint:
    """One entry point of a distribution."""

    def __init__(self, name: str, value: str, distribution: Distribution) -> None:
        """``value`` is ``module`` or ``module:attribute``, as written."""
        self.name, self.value, self.distribution = name, value, distribution

    @property
    def module(self) -> str:
        """The module that it leads to. Raises ``ValueError`` if it leads to none."""
        return self._parts()[0]

    def load(self) -> Any:
        """Import what it leads to. Raises ``ValueError`` if that is impossible, and whatever the import raises."""
        module, attributes = self._parts()
        return functools.reduce(getattr, filter(None, attributes.split(".")), import_module(module))

    def _parts(self) -> tuple[str, str]:
        match = _ENTRY_POINT.match(self.value)
        if match is None:
            raise ValueError(f"{self.value!r} names no module")
        return match["module"], match["attributes"] or ""


class Distribution:
    """An installed distribution. What it says about itself is read when needed."""

    def __init__(self, folder: str, known: Any = None) -> None:
        """``folder`` ends with .dist-info or .egg-info. One that is in none is ``known`` to ``importlib.metadata``."""
        self._folder, self._known = folder, known

    @functools.cached_property
    def name(self) -> str:
        """Its name as written; empty if it states none, for example after an interrupted install."""
        return self._head("name")

    @functools.cached_property
    def version(self) -> str:
        """Its version as written; empty if it states none."""
        return self._head("version")

    @property
    def requires(self) -> list[str]:
        """Its requirements, one string each, including those of its extras."""
        known = self._known
        if known is None:
            from importlib.metadata import Distribution as PythonDistribution

            known = PythonDistribution.at(self._folder)
        return list(known.requires or ())

    def entry_points(self, group: str) -> Iterator[EntryPoint]:
        """The entry points of a group, in order. A malformed line yields one that leads nowhere."""
        within = ""
        for line in map(str.strip, self._read("entry_points.txt").splitlines()):
            if line.startswith("[") and line.endswith("]"):
                within = line.strip("[]")
            elif within == group and line and not line.startswith("#"):
                name, _, value = (part.strip() for part in line.partition("="))
                yield EntryPoint(name, value, self)

    def _head(self, name: str) -> str:
        text = next(filter(None, map(self._read, _METADATA)), "")
        for line in text.splitlines():
            if not line:  # its description begins
                break
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return ""

    def _read(self, file: str) -> str:
        """The file's text; empty if there is no such file, or it may not be read."""
        if self._known is not None:
            return self._known.read_text(file) or ""
        try:
            with open(os.path.join(self._folder, file), encoding="utf-8", errors="replace") as text:
                return text.read()
        except OSError:
            return ""


def normalise(name: str) -> str:
    """A distribution or plug-in name in the form used for comparisons."""
    return _SEPARATORS.sub("-", name).lower()


def distributions() -> Iterator[Distribution]:
    """Each installed distribution, once: the first on ``sys.path`` of each name, as for imports."""
    found = _in_folders()
    seen = set()
    for name, distribution in _by_python() if found is None else found:
        if name not in seen:
            seen.add(name)
            yield distribution


def entry_points(group: str) -> Iterator[EntryPoint]:
    """The entry points of everything installed. A distribution may have several of one name."""
    for distribution in distributions():
        yield from distribution.entry_points(group)


def version_of(name: str) -> str:
    """The version of a distribution, read without importing it; empty if it is not installed."""
    found = _in_folders()
    wanted = normalise(name)
    return next((each.version for own, each in (_by_python() if found is None else found) if own == wanted), "")


def _in_folders() -> list[tuple[str, Distribution]] | None:
    """All distributions with their normalised names; None if some may not be in folders."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return None
    found: list[tuple[str, Distribution]] = []
    for entry in dict.fromkeys(map(os.fsdecode, sys.path)):
        try:
            names = os.listdir(entry or ".")
        except NotADirectoryError:
            return None
        except OSError:  # it does not exist
            continue
        if entry.lower().endswith(".egg"):
            return None
        for name in names:
            stem, dot, kind = name.rpartition(".")
            if kind.lower() in ("dist-info", "egg-info") and dot:
                distribution = Distribution(os.path.join(entry, name))
                found.append((normalise(stem.partition("-")[0] or distribution.name), distribution))
    return found


def _by_python() -> Iterator[tuple[str, Distribution]]:
    from importlib.metadata import distributions as by_python

    for known in by_python():
        distribution = Distribution("", known)
        yield normalise(distribution.name or str(id(known))), distribution  # one without a name is nobody else's
