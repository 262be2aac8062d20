"""The statistics of servers and proxies, as they come from the native part or over the wire."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def parse_statistics(text: bytes) -> dict[str, Any]:
    """The statistics of a server or a proxy, including what proxies report in them. Raises ``ValueError``."""
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError(f"{type(data).__name__} instead of an object")
    try:
        for keyspace in data.get("keyspaces", ()):
            for trunk in keyspace.get("trunks", ()):
                trunk["report"] = _parse_report(trunk["report"])
        for run in data.get("runs", ()):
            run["name"] = str(run["name"])
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"its keyspaces or runs cannot be read: {error}") from None
    return data


def _parse_report(text: str) -> dict[str, Any]:
    """What a proxy says about itself: empty if it has said nothing yet, or something it should not."""
    try:
        report = json.loads(text)
        return {**report, "children": [_parse_report(child) for child in report["children"]]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


CONTROL = "control"
"""The name of a server's first keyspace if that is the agents' control store of one job."""
NO_RUN = "(a control store, for no session)"
"""The only run for which such a server opens sessions; no real run has this id."""


def is_control_store(stats: Mapping[str, Any]) -> bool:
    """Whether these are the statistics of such a server."""
    return any(keyspace.get("name") == CONTROL for keyspace in stats.get("keyspaces", ()))
