"""``make release VERSION=X.Y.Z``: writes the version, runs the checks, makes the sdist and the wheels.

    python release/prepare.py X.Y.Z [--date YYYY-MM-DD] [--check TARGET]...

Nothing is committed, tagged or uploaded: at the end it says how. What it has written stays, also when a check fails.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from version import set_version, version

ROOT = Path(__file__).parents[1]
CHANGELOG = ROOT / "CHANGELOG.md"
CHECKS = ("lint", "sanitize", "test", "demo", "wheels")
_HEADING = "## [Unreleased]\n"


def released(changelog: str, number: str, date: str) -> str:
    """The changelog, with what was *Unreleased* under this version. Raises ``ValueError`` with a sentence."""
    if f"## [{number}]" in changelog:
        raise ValueError(f"CHANGELOG.md has {number} already")
    before, heading, after = changelog.partition(_HEADING)
    if not heading or not after.partition("\n## ")[0].strip():
        raise ValueError("CHANGELOG.md says nothing under [Unreleased]")
    return f"{before}{_HEADING}\n## [{number}] - {date}\n{after}"


def newer(number: str, old: str) -> bool:
    """Whether this version may follow the old one, or is that which the project was begun with."""
    return _key(number) >= _key(old)


def _key(number: str) -> tuple[int, ...]:
    return tuple(map(int, number.split(".")))


def main(argv: Sequence[str] | None = None) -> None:
    """Ends the process with a sentence where something forbids the release."""
    parser = argparse.ArgumentParser(prog="release/prepare.py", description=__doc__.partition("\n")[0])
    parser.add_argument("version", help="X.Y.Z")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="of the changelog; today if left out")
    parser.add_argument("--check", choices=CHECKS, action="append", help="only these targets of make")
    args = parser.parse_args(argv)
    if not re.fullmatch(r"\d+\.\d+\.\d+", args.version):
        sys.exit(f"release: {args.version!r} is no version X.Y.Z")
    if not newer(args.version, version()):
        sys.exit(f"release: {args.version} is older than {version()}, which pyproject.toml has")
    if changed := subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True).stdout:
        sys.exit(f"release: commit what has changed, or put it aside:\n{changed.rstrip()}")
    try:
        text = released(CHANGELOG.read_text(), args.version, args.date)
    except ValueError as error:
        sys.exit(f"release: {error}")
    CHANGELOG.write_text(text)
    set_version(args.version)
    for target in args.check or CHECKS:
        print(f"release: make {target}", flush=True)
        if subprocess.run(["make", target], cwd=ROOT).returncode:
            sys.exit(
                f"release: make {target} failed. What was written says {args.version}; to begin again: "
                "git checkout CHANGELOG.md pyproject.toml"
            )
    print(
        f"release: dist/ has {args.version}. What is left:\n"
        f"  git commit --all --message='Release {args.version}'\n"
        f"  git tag v{args.version}\n"
        "and the upload of dist/*."
    )


if __name__ == "__main__":
    main()
