"""A runtime whose time passes when a test says so."""

from __future__ import annotations

from rdzv_plugins.runtime import Runtime


class Clock(Runtime):
    seconds = 100.0

    def monotonic(self) -> float:  # type: ignore[override]
        return self.seconds
