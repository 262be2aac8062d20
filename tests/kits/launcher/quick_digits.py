"""examples/train_digits.py without the seconds of its imports.

It reads the same digits, but without scikit-learn, which takes as long to import as torch, and asks for a warm worker
(``kits.warm.program``), which it gets of a warm agent.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from kits import ROOT

DIGITS = ROOT / "examples" / "train_digits.py"
_DATASETS = """
from types import SimpleNamespace
import numpy

def load_digits():
    rows = numpy.loadtxt({!r}, delimiter=",")
    return SimpleNamespace(data=rows[:, :-1], target=rows[:, -1].astype(int))
"""


def quick_digits(folder: Path) -> Path:
    """The path of the script in ``folder``, beside a module that reads scikit-learn's file as scikit-learn does."""
    real = importlib.util.find_spec("sklearn")
    assert real is not None
    assert real.origin is not None
    file = Path(real.origin).parent / "datasets/data/digits.csv.gz"
    package = folder / "sklearn"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "datasets.py").write_text(_DATASETS.format(str(file)))
    script = folder / DIGITS.name
    if not script.exists():
        shutil.copy(DIGITS, script)
    with script.open("a") as file:
        file.write("# as by: import quick_torch\n")
    return script
