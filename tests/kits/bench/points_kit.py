"""Points that nobody has measured."""

from __future__ import annotations

from typing import Any

from rdzv_launcher.bench.method.points import Point


def point(target: str, *samples: float, figure: str = "join", case: str = "64 nodes", **more: Any) -> Point:
    """Of a target that is compared with others."""
    return Point("test", case, target, figure, "join", "s", samples, **more)


def theirs(*samples: float, **more: Any) -> Point:
    """Of the reference."""
    return point("torch", *samples, reference=True, **more)
