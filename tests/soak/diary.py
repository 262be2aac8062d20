"""What a soak says while it runs, and keeps: lines for people, events and violations as data."""

from __future__ import annotations

import json
import os
import sys
import time
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
