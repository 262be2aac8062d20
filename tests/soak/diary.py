"""What a soak says while it runs, keeps and counts: lines for people, events and violations as data, figures."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from soak.checker import Violation
from soak.schedule import Fault

_SHOWN = 50
"""Violations in the line at the end; all are in events.jsonl."""


class Diary:
    """``soak.log`` (also on stderr) and ``events.jsonl`` in ``directory``; times are of the monotonic clock."""

    def __init__(self, directory: Path) -> None:
        self.violations: list[Violation] = []
        self.fault: Fault | None = None
        """What is under way, or was the last."""
        self.counts: Counter[str] = Counter()
        """Rounds, steps, and how many of these were excused."""
        self.faults: Counter[str] = Counter()
        self._recovery: dict[str, list[float]] = {}
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
        more = {"during": str(self.fault), "load": round(os.getloadavg()[0], 1)}
        evidence = {**violation.evidence, **more}
        self.violations.append(Violation(violation.kind, violation.text, violation.at, evidence))
        self.event("violation", kind=violation.kind, text=violation.text, at=violation.at, **evidence)
        self.note(f"VIOLATION {violation.kind}: {violation.text}")

    def recovered(self, kind: str, seconds: float) -> None:
        """From the end of the faults until all nodes worked; or, of ``_others``, from the beginning of one."""
        self._recovery.setdefault(kind, []).append(seconds)

    def line(self, **facts: Any) -> dict[str, Any]:
        """Everything for the one line of JSON; ``facts`` come first."""
        recovery = {
            kind: {"n": len(times), "median": round(statistics.median(times), 2), "max": round(max(times), 2)}
            for kind, times in sorted(self._recovery.items())
        }
        return facts | {
            **self.counts,
            "faults": dict(sorted(self.faults.items())) | {"all": sum(self.faults.values())},
            "recovery_s": recovery,
            "violation_kinds": dict(Counter(violation.kind for violation in self.violations)),
            "violations": [
                {"kind": each.kind, "at": round(each.at, 3), "text": each.text, **each.evidence}
                for each in self.violations[:_SHOWN]
            ],
        }

    def close(self) -> None:
        self._log.close()
        self._events.close()
