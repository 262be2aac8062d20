"""Settings that ``rdzv bench launch`` and ``rdzv bench faults`` have in common."""

from __future__ import annotations

from typing import Any

from rdzv_launcher.bench.backends import REFERENCES
from rdzv_launcher.bench.method.settings import setting


def references() -> Any:
    """The field ``references`` of a settings class: see ``reference_names``, which checks it."""
    return setting(
        ",".join(reversed(REFERENCES)),
        metavar="A,B",
        help="torchrun's own backends to compare with, {default}, or none (default both)",
    )
