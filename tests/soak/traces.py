"""Records as workers write them, of worlds that are as they should be, to be spoiled by the tests of the checker."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from soak.checker import Checker

RECORDED = Path(__file__).parent / "recorded"
Trace = list[dict[str, Any]]


def recorded(name: str) -> Trace:
    """What the workers of a real job have written, in the order of time."""
    return [json.loads(line) for line in (RECORDED / name).read_text().splitlines()]


def world(id_: str, size: int, begun: float, *, steps: int = 5, round_: int | None = None) -> Trace:
    """A world of ``size`` nodes with a worker each, which takes a second for each of its ``steps``."""
    trace: Trace = []
    for rank in range(size):
        who = {"node": f"node{rank}", "agent": f"agent{rank}", "pid": 1000 * rank + int(begun), "id": id_, "rank": rank}
        joined = {"what": "joined", "t": begun - 0.5, "size": size, "holder": ""}
        trace.append(who | joined | ({} if round_ is None else {"rdzv_round": str(round_)}))
        for step in range(steps):
            trace.append(who | {"what": "step", "step": step, "t0": begun + step, "t": begun + step + 0.9})
    return in_order(trace)


def in_order(trace: Iterable[dict[str, Any]]) -> Trace:
    return sorted(trace, key=lambda record: float(record["t"]))


def check(trace: Iterable[dict[str, Any]]) -> Checker:
    """Fed as a soak does it: some records, then a look."""
    checker = Checker()
    for record in trace:
        checker.feed(record)
    checker.settle()
    return checker


def kinds(trace: Iterable[dict[str, Any]]) -> list[str]:
    """Of the violations that are found."""
    return [violation.kind for violation in check(trace).violations]
