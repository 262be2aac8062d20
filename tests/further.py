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
    "test-slurm": ("src/rdzv_plugins/schedulers/", "tests/slurm/", "tests/kits/slurm/"),
}
THOROUGH: dict[str, tuple[str, ...]] = {
    "tests/wire": ("native/", "CMakeLists.txt", "constraints.txt", "tests/wire/", "tests/kits/wire/"),
    "tests/plugins": ("src/rdzv_plugins/registry/", "src/rdzv_plugins/hookspecs.py", "tests/plugins/"),
    "tests/conformance": (
        "constraints.txt",
        "src/rdzv_plugins/testing/",
        "src/rdzv_plugins/backends/",
        "tests/conformance/",
        "tests/kits/conformance/",
    ),
    "tests/bench": ("src/launcher/rdzv_launcher/bench/", "tests/bench/", "tests/kits/bench/"),
    "tests/soak": ("tests/soak/",),
    "tests/examples": ("docs/", "examples/", "README.md", "tests/examples/", "tests/kits/examples/"),
}
"""A target of make, or a folder whose thorough tests are run -> where a changed path begins.

Another torch (constraints.txt) is tried by the gate, and where its own store or its rendezvous stands beside ours. What
CI does, and this file, are tried as they run: a change of theirs asks for nothing more.
"""
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
    base = base or _beginning()
    # both names of what was moved, any name as it is, and what is not committed yet
    differ = _git("diff", "--name-only", "--no-renames", "-z", base, "--") if base else None
    new = _git("ls-files", "--others", "--exclude-standard", "-z")
    return None if differ is None or new is None else [path for path in (differ + new).split("\0") if path]


def _beginning() -> str:
    """The commit where this work began; empty if the clone does not have it."""
    head = _git("rev-parse", "HEAD")
    bases = [_git("merge-base", "HEAD", main) for main in MAIN if _git("rev-parse", "--verify", "--quiet", main)]
    committed = int(_git("log", "-1", "--format=%ct") or 0)
    earlier = _git("rev-list", "-1", f"--before={committed - EARLIER_S}", "HEAD")
    return next((base for base in bases if base != head), earlier) or ""  # None: a shallow clone lacks it


def _git(*arguments: str) -> str | None:
    """The answer of git, None if it has failed."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, errors="surrogateescape")
    return None if done.returncode else done.stdout.strip("\n")


if __name__ == "__main__":
    print(*further(changed_since("".join(sys.argv[1:]))), sep="\n")
