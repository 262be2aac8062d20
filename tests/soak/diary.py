"""What a soak says while it runs, keeps and counts: lines for people, events and violations as data, figures."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak.checker import Violation
from soak.schedule import Burst


class Diary:
    """``soak.log`` (also on stderr) and ``events.jsonl`` in ``directory``; times are of the monotonic clock."""

    def __init__(self, directory: Path) -> None:
        self.violations: list[Violation] = []
        self.burst: Burst | None = None
        """What is under way."""
        self._log = (directory / "soak.log").open("a", buffering=1)
        self._events = (directory / "events.jsonl").open("a", buffering=1)

    def note(self, text: str) -> None:
        """For people."""
        self._log.write(f"{time.monotonic():.3f} {text}\n")
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        sys.stderr.flush()

    def event(self, what: str, **more: Any) -> None:
        """For whoever looks into it later."""
        self._events.write(json.dumps({"t": round(time.monotonic(), 3), "what": what} | more) + "\n")

    def accuse(self, kind: str, text: str, **evidence: Any) -> None:
        """A violation, now."""
        self.add(Violation(kind, text, time.monotonic(), evidence))

    def add(self, violation: Violation) -> None:
        """One more, with what was under way."""
        during = {"during": str(self.burst), "burst": self.burst.number} if self.burst else {}
        evidence = {**violation.evidence, **during, "load": round(os.getloadavg()[0], 1)}
        self.violations.append(Violation(violation.kind, violation.text, violation.at, evidence))
        self.event("violation", kind=violation.kind, text=violation.text, at=violation.at, **evidence)
        self.note(f"VIOLATION {violation.kind}: {violation.text}")

    def close(self) -> None:
        self._log.close()
        self._events.close()


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
