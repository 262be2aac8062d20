"""A benchmark as a user runs it, in a process of its own, and a plug-in of a stranger as pip would leave it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from rdzv_launcher.bench.method.points import Point
from rdzv_launcher.bench.method.results import Result, read_result
from rdzv_plugins.testing.agents.processes import kill
from rdzv_plugins.testing.forks.signals import before_exec

with_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None and not os.environ.get("CI"), reason="certificates are made by the command openssl"
)
HERE = Path(__file__).parent
RDZV = str(Path(sys.executable).parent / "rdzv")
_TIMEOUT_S = 200.0
_MARK = "BENCH_TEST_MARK"
"""The variable by which processes are found: none of those that the launcher's processes lose."""


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str

    def result(self) -> Result:
        """What ``--json`` has printed."""
        assert self.returncode == 0, self.stderr
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write(self.stdout)
            file.flush()
            return read_result(Path(file.name))


def bench(*arguments: str, sites: tuple[Path, ...] = (), directory: Path | None = None) -> Done:
    """``rdzv bench ARGUMENTS`` to its end; what is installed in ``sites`` is there too. Nothing of it is left."""
    with started(*arguments, sites=sites, directory=directory) as process:
        out, err = process.communicate(timeout=_TIMEOUT_S)
    return Done(process.returncode, out, err)


class Bench(subprocess.Popen[str]):
    """A benchmark that runs. All that it starts carries its mark."""

    mark = ""

    def left(self) -> dict[int, str]:
        """The processes with its mark that live: pid to command line."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                ours = f"{_MARK}={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
                if ours and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it has just ended
                continue
        return found


@contextmanager
def started(*arguments: str, sites: tuple[Path, ...] = (), directory: Path | None = None) -> Iterator[Bench]:
    """``rdzv bench ARGUMENTS``, in a session of its own. What it has started ends with the block at the latest."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "RDZV_", "TORCHELASTIC_"))}
    mark = uuid.uuid4().hex
    ours = {"PYTHONPATH": os.pathsep.join(map(str, sites)), "OMP_NUM_THREADS": "1", _MARK: mark}
    with Bench(
        [RDZV, "bench", *arguments],
        env=kept | ours,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=before_exec(),
    ) as process:
        process.mark = mark
        try:
            yield process
        finally:
            for pid in process.left():
                kill(pid)


def install(directory: Path, module: str, *, name: str, harness: str = "", also: tuple[str, ...] = ()) -> Path:
    """Leave MODULE.py, which is beside this file, as an installed distribution; returns what sees it in ``sites``.

    ``harness``: the class in it that is its harness, and that of the backends ``also`` in it.
    """
    site = directory / f"site-{module}"
    info = site / f"rdzv_{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{module}.py").write_text((HERE / f"{module}.py").read_text())
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: rdzv-{name}\nVersion: 1.0\n")
    groups = f"[rdzv_plugins]\n{name} = {module}\n"
    if harness:
        groups += "\n[rdzv_plugins.harnesses]\n"
        groups += "".join(f"{each} = {module}:{harness}\n" for each in (name, *also))
    (info / "entry_points.txt").write_text(groups)
    return site


def find(result: Result, case: str, target: str, figure: str) -> Point:
    """The one point there is."""
    (point,) = (p for p in result.points if (p.case, p.target, p.figure) == (case, target, figure))
    return point
