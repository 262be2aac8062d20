"""The control groups of this process, as directories of files. Source: cgroups(7), proc(5)."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import NamedTuple


class Cgroup(NamedTuple):
    """Where the files of a control group may be."""

    version: int
    """The version of cgroups: 1 or 2."""
    directory: Path
    path: str
    """Its name below the mount; empty for the root group."""


def directories_of(controller: str, root: Path = Path("/")) -> list[Cgroup]:
    """Where the group of this process for ``controller`` may be found, version 2 first, the likeliest first.

    In a container the path may be the one on its host, of which the mount shows only the end. ``root`` is where
    ``proc`` and everything that it names are. Empty if there are none.
    """
    own: dict[int, str] = {}
    found: list[Cgroup] = []
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
            found += [Cgroup(version, at / path.lstrip("/"), path) for path in paths]
    except (OSError, ValueError):
        pass
    return sorted(found, key=lambda group: -group.version)


def memory_of_groups() -> list[tuple[int, int]]:
    """What each control group around this process may use and does use, in bytes, not counting what can be dropped."""
    found = []
    for place in directories_of("memory"):
        most, now, dropped = (
            ("memory.max", "memory.current", "inactive_file ")
            if place.version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
        )
        for directory in (place.directory, *place.directory.parents):
            try:
                limit, used = int((directory / most).read_text()), int((directory / now).read_text())
                lines = (directory / "memory.stat").read_text().splitlines()
                cache = sum(int(line.removeprefix(dropped)) for line in lines if line.startswith(dropped))
                found.append((limit, max(0, used - cache)))
            except (OSError, ValueError):
                continue
    return sorted(set(found))


def cpu_quotas() -> list[float]:
    """How many processors' worth of time the control groups allow."""
    found = []
    for place in directories_of("cpu"):
        for directory in (place.directory, *place.directory.parents):
            try:
                if place.version == 2:
                    quota, period = (directory / "cpu.max").read_text().split()
                else:
                    quota = (directory / "cpu.cfs_quota_us").read_text()
                    period = (directory / "cpu.cfs_period_us").read_text()
                if int(quota) > 0:
                    found.append(int(quota) / int(period))
            except (OSError, ValueError):
                continue
    return found
