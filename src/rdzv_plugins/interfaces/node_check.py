"""What a check of one node has found: what ``rdzv_preflight`` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class NodeCheck:
    """One part of a node, as its preflight has found it. Immutable."""

    name: str
    """What was looked at, in a word or two; unique on its node, and the same on all."""
    verdict: Literal["ok", "warning", "broken"] = "ok"
    """``broken``: a job should not use this node. ``warning``: it may, and somebody is told."""
    text: str = ""
    """What was found, a sentence without its name."""
    value: float | None = None
    """A figure of which more is better, to be compared with those of the other nodes; None: there is none.

    From three nodes on, one whose value is less than the median's ``preflight_factor``-th part is slow.
    """
    unit: str = ""
    """Of ``value``: ``GB/s``, say."""
