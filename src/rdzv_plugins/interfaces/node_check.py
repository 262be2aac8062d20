"""The result of a check of one node, as ``rdzv_preflight`` returns it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class NodeCheck:
    """The condition of one part of a node, as its preflight found it. Immutable."""

    name: str
    """What was checked, in a word or two; unique on its node, and the same on all nodes."""
    verdict: Literal["ok", "warning", "broken"] = "ok"
    """``broken``: a job should not use this node. ``warning``: it may, but the finding is reported."""
    text: str = ""
    """The finding, as a sentence that does not repeat the name."""
    value: float | None = None
    """A figure to compare with the other nodes', where more is better; None if there is none.

    Among at least three nodes, one is slow if its value is less than the median divided by ``preflight_factor``.
    """
    unit: str = ""
    """The unit of ``value``, for example ``GB/s``."""
