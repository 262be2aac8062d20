"""The sdist: made from the checkout, whole, and unpacked for the wheels."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"


def build_sdist(into: Path) -> Path:
    """Make the sdist in an empty dist/, and unpack it into a folder; returns the folder that was packed.

    Ends the process if it lacks a file that git has.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--sdist", "--outdir", str(DIST), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (archive,) = DIST.glob("*.tar.gz")
    shutil.rmtree(into, ignore_errors=True)
    with tarfile.open(archive) as packed:
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        if missing := left_out(packed.getnames(), tracked.splitlines()):
            sys.exit(f"wheels: {archive.name} lacks {', '.join(missing)}")
        packed.extractall(into, filter="data")
    (unpacked,) = into.iterdir()
    # the same path for all versions: what was compiled from it is used again
    return unpacked.rename(into / "rdzv_plugins")


def left_out(archive: Iterable[str], tracked: Iterable[str]) -> list[str]:
    """The files of git that the archive, whose names begin with a folder, does not have."""
    return sorted(set(tracked) - {name.partition("/")[2] for name in archive})
