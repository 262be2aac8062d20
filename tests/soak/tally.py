"""What a soak has done and found, as figures; its folder has the rest."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from soak.checker import Violation

_SHOWN = 50
"""Violations with their evidence; all are in events.jsonl."""


@dataclass
class Tally:
    """Counts as it goes; ``line`` at the end."""

    violations: list[Violation]
    """Those of the diary."""
    faults: Counter[str] = field(default_factory=Counter)
    bursts: int = 0
    recovery: dict[str, list[float]] = field(default_factory=dict)
    """By kind of faults that came alone: seconds until all nodes worked again once the fault was over, and, with
    ``_others``, until the others did since it began."""
    limits: dict[str, float] = field(default_factory=dict)
    """By the same kinds: the largest that was allowed."""
    late: Counter[str] = field(default_factory=Counter)
    """Recoveries that took longer, or never came."""
    jobs: Counter[str] = field(default_factory=Counter)
    """How the jobs have ended."""
    node_ends: Counter[str] = field(default_factory=Counter)
    """Ends of agents that nobody had told to, and that the documentation names."""

    def recovered(self, kind: str, seconds: float, limit: float) -> None:
        self.recovery.setdefault(kind, []).append(seconds)
        self.limits[kind] = max(limit, self.limits.get(kind, 0.0))

    def line(self, **facts: Any) -> dict[str, Any]:
        """Everything for the one line of JSON; ``facts`` come first."""
        kinds = Counter(violation.kind for violation in self.violations)
        return facts | {
            "bursts": self.bursts,
            "faults": dict(sorted(self.faults.items())) | {"all": sum(self.faults.values())},
            "recovery_s": {kind: self._times(kind, times) for kind, times in sorted(self.recovery.items())},
            "jobs": dict(self.jobs),
            "node_ends": dict(self.node_ends),
            "violation_kinds": dict(kinds),
            "violations": [_shown(violation) for violation in self.violations[:_SHOWN]],
        }

    def _times(self, kind: str, times: list[float]) -> Mapping[str, float]:
        return {
            "n": len(times),
            "median": round(statistics.median(times), 2),
            "max": round(max(times), 2),
            "limit": round(self.limits[kind], 1),
        }


def _shown(violation: Violation) -> dict[str, Any]:
    return {"kind": violation.kind, "at": round(violation.at, 3), "text": violation.text, **violation.evidence}
