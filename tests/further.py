"""``python tests/further.py [BASE]``: what the change since BASE asks for beyond the gate, one target of make a line.

Without BASE that is where HEAD has left the main branch; on that branch itself, or in a clone that has no other, the
newest commit that is half a day older than HEAD. If there is none (a shallow clone), everything is asked for: rather
too much than too little.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

TARGETS: dict[str, tuple[str, ...]] = {
    "sanitize": ("native/", "CMakeLists.txt"),
    "test-slurm": ("src/rdzv_plugins/schedulers/", "tests/slurm/"),
}
THOROUGH: dict[str, tuple[str, ...]] = {
    "tests/wire": ("native/", "CMakeLists.txt", "tests/wire/"),
    "tests/conformance": ("src/rdzv_plugins/testing/", "tests/conformance/"),
    "tests/bench": ("src/launcher/rdzv_launcher/bench/", "tests/bench/"),
    "tests/examples": ("docs/", "examples/", "README.md", "tests/examples/"),
}
"""A target of make, or a folder whose thorough tests are run -> where a changed path begins."""
MAIN = ("origin/main", "origin/master", "upstream/main")
EARLIER_S = 12 * 3600


def further(changed: Iterable[str] | None) -> list[str]:
    """The targets for these changed paths; all of them if nobody knows what has changed."""

    def asked(by: dict[str, tuple[str, ...]]) -> list[str]:
        return [name for name, places in by.items() if paths is None or any(path.startswith(places) for path in paths)]

    paths = None if changed is None else tuple(changed)
    folders = asked(THOROUGH)
    return asked(TARGETS) + ([f"thorough THOROUGH='{' '.join(folders)}'"] if folders else [])


def changed_since(base: str) -> list[str] | None:
    """The paths that differ from ``base``, or from where this work began; None if that is not known."""
    head = _git("rev-parse", "HEAD")
    if not base:
        base = next((found for name in MAIN if (found := _git("merge-base", "HEAD", name)) not in ("", head)), "")
    if not base:
        committed = int(_git("log", "-1", "--format=%ct") or 0)
        base = _git("rev-list", "-1", f"--before={committed - EARLIER_S}", "HEAD")
    if not base or not _git("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}"):
        return None
    return _git("diff", "--name-only", base, "HEAD").splitlines()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    print(*further(changed_since("".join(sys.argv[1:]))), sep="\n")
