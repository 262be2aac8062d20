"""The control groups of this process, as directories of files. Source: cgroups(7), proc(5)."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import NamedTuple


class Group(NamedTuple):
    """Where the files of a control group may be."""

    version: int
    """1 or 2."""
    directory: Path
    path: str
    """Its name below the mount; empty for the topmost."""


def directories_of(controller: str, root: Path = Path("/")) -> list[Group]:
    """Where the group of this process may be found that ``controller`` keeps, version 2 first, the likeliest first.

    In a container the path may be that on its host, of which the mount shows only the end. ``root``: where ``proc`` is,
    and all that it names. Empty where there are none.
    """
    own: dict[int, str] = {}
    found: list[Group] = []
    try:
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                own[1 if controllers else 2] = path
        for line in (root / "proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            shown, mount = left.split()[3:5]
            kind, _, options = right.split(maxsplit=2)
            version = {"cgroup2": 2, "cgroup": 1 if controller in options.split(",") else 0}.get(kind, 0)
            if version not in own:
                continue
            below = posixpath.relpath(own[version], shown)
            paths = [own[version], ""] if below.startswith("..") else ["" if below == "." else f"/{below}", ""]
            at = root / mount.lstrip("/")
            found += [Group(version, at / path.lstrip("/"), path) for path in paths]
    except (OSError, ValueError):
        pass
    return sorted(found, key=lambda group: -group.version)
