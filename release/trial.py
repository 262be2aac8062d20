"""Tries a wheel: installs it into an environment of its own, and runs jobs of two agents on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from builder import WORK
from interpreters import environment, install
from sdist import ROOT

from rdzv_plugins.testing import free_port

TORCH_ON = "3.11"
"""The Python with which all tests are run."""
_BACKENDS = ("parallel", "tiered")
_LIMIT_S = 300.0
_WORKERS = 4
"""Two on each of two nodes."""


def without_torch(python: str, wheel: Path) -> str:
    """Install with all that it requires but torch, and run a job over each backend; returns a sentence."""
    interpreter = environment(WORK / f"trial-{python}", python, fresh=True)
    install(interpreter, [each for each in _required(wheel) if not each.startswith("torch")])
    install(interpreter, ["--no-deps", "--no-index", str(wheel)])
    for backend in _BACKENDS:
        _job(interpreter, backend, "over_the_store.py")
    return f"Python {python} without torch: jobs over {' and '.join(_BACKENDS)}, with {wheel.name}"


def _required(wheel: Path) -> list[str]:
    """What it says that it cannot do without."""
    with zipfile.ZipFile(wheel) as files:
        (metadata,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        said = HeaderParser().parsestr(files.read(metadata).decode())
    return [each for each in said.get_all("Requires-Dist", ()) if "extra ==" not in each]


def with_torch(wheel: Path) -> str:
    """Install with the torch of constraints.txt, and run a job over each backend; returns a sentence."""
    interpreter = environment(WORK / "trial-torch", TORCH_ON, fresh=True)
    (torch,) = (line for line in (ROOT / "constraints.txt").read_text().split() if line.startswith("torch=="))
    install(interpreter, ["-c", str(ROOT / "constraints.txt"), torch, "numpy", str(wheel)])
    for backend in _BACKENDS:
        _job(interpreter, backend, "over_gloo.py")
    return f"Python {TORCH_ON} with {torch}: jobs over {' and '.join(_BACKENDS)}, with {wheel.name}"


def _job(python: Path, backend: str, worker: str) -> None:
    """Two agents, whose workers each print one line: the sum over all ranks. Ends the process if one does not."""
    folder = WORK / "job"  # with nothing of the checkout in it: what is imported is what was installed
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "workers" / worker, folder)
    command = [str(python.parent / "rdzv-run"), f"--rdzv-backend={backend}", "--nnodes=2", "--nproc-per-node=2"]
    command += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", worker]
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
    files = [folder / f"node-{node}" for node in range(2)]
    nodes = []
    for path in files:
        with path.open("w") as output:
            nodes.append(subprocess.Popen(command, cwd=folder, env=kept, stdout=output, stderr=subprocess.STDOUT))
    try:
        codes = [node.wait(_LIMIT_S) for node in nodes]
    except subprocess.TimeoutExpired:
        codes = []
    finally:
        for node in nodes:
            node.kill()
    said = [path.read_text() for path in files]
    right = sum(text.count(f"of {_WORKERS}: the sum is 10\n") for text in said)
    if codes != [0, 0] or right != _WORKERS:
        sys.exit(f"wheels: the job of {python} over {backend} failed with {codes or 'no end'}:\n" + "\n".join(said))
