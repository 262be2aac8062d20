"""What is found of the service at which nodes meet: what ``Backend.health`` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Verdict = Literal["ok", "warning", "wrong", "skipped"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class ServiceCheck:
    """One thing about the service. Immutable."""

    name: str
    """What was looked at, in a word or two: ``database of 10.0.0.1:2379``. Unique among the checks of one service."""
    text: str
    """What was found, a sentence without its name."""
    verdict: Verdict = "ok"
    """``wrong``: a job cannot be started there, or will fail. ``warning``: it can, and somebody should see to it.

    ``skipped``: nothing can be said of it, and the text says why.
    """
    remedy: str = ""
    """What to do about it, a sentence, for one that is wrong or a warning."""
