"""The program that forks the processes of nodes: one for all tests of a process with the same early variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from rdzv_plugins.testing.forks.forks import Forks, forks

_READ_AT_START = ("LD_", "PYTHONHASHSEED", "PYTHONMALLOC", "TORCH", "OMP_", "MALLOC_", "RDZV_DEBUG", "GRPC_")
"""The beginnings of the names of variables that must be there when the interpreter starts or a library is imported."""


def warm(environment: Mapping[str, str]) -> Forks:
    """The program for nodes with these variables."""
    early = {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}
    variables = {**os.environ, **early, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return forks("rdzv_plugins.testing.nodes.process", "", variables, early)
