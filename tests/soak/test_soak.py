"""A soak of a few faults, which the job has to bear; and what it would say of one that does not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kits.hosts.hosts import require

from rdzv_plugins.testing.processes import MARK
from soak.checker import Checker
from soak.diary import Diary
from soak.job import AgentProcess
from soak.leaks import Leftovers, grown

SOAK = Path(__file__).parent
Trace = list[dict[str, Any]]


@pytest.mark.thorough
@pytest.mark.parametrize("secrets", [(), ("--token", "--tls")])
def test_job_bears_a_few_faults(tmp_path: Path, secrets: tuple[str, ...]) -> None:
    require(tmp_path)
    command = [sys.executable, str(SOAK), f"--out={tmp_path}/soak", "--nodes=2", "--min-nodes=1", "--slack=5"]
    command += ["--seed=10", "--count=2", "--faults=kill_worker,term_agent,stop_worker", *secrets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220)
    assert done.stdout, done.stderr
    line = json.loads(done.stdout)
    assert (line["token"], line["tls"]) == (bool(secrets), bool(secrets))
    assert (done.returncode, line["violations"]) == (0, []), done.stderr
    assert line["faults"] == {"kill_worker": 1, "term_agent": 1, "all": 2}
    assert line["recovery_s"].keys() == {"start", "kill_worker", "term_agent", "term_agent_others"}
    assert line["rounds"] >= 3, "one more after the worker's end, and after the node's return"
    assert line["steps"] > 0
    assert {"agents", "records", "events.jsonl", "soak.log"} <= {path.name for path in (tmp_path / "soak").iterdir()}


def a_round(number: int, size: int, begun: float, *, steps: int = 5) -> Trace:
    """What a round of ``size`` nodes with a worker each writes; each of its ``steps`` takes a second."""
    trace: Trace = []
    for rank in range(size):
        pid = 1000 * rank + int(begun)
        who = {"node": f"node{rank}", "agent": f"agent{rank}", "pid": pid, "round": number, "rank": rank}
        trace.append(who | {"what": "joined", "t": begun - 0.5, "size": size})
        for step in range(steps):
            trace.append(who | {"what": "step", "step": step, "t0": begun + step, "t": begun + step + 0.9})
    return in_order(trace)


def in_order(trace: Iterable[dict[str, Any]]) -> Trace:
    return sorted(trace, key=lambda record: float(record["t"]))


def kinds(trace: Iterable[dict[str, Any]], checker: Checker | None = None) -> set[str]:
    """Of the violations that are found."""
    checker = checker or Checker()
    for record in trace:
        checker.feed(record)
    checker.settle()
    return {violation.kind for violation in checker.violations}


def two_rounds(**first: object) -> Trace:
    """One after the other; ``first`` is changed in what the first worker of the old one writes as it joins."""
    trace = a_round(1, 3, 100) + a_round(2, 2, 110)
    trace[0] |= first
    return trace


def last_step() -> dict[str, Any]:
    """Of rank 0 of the old round."""
    (found,) = [each for each in two_rounds() if each["round"] == 1 and each.get("step") == 4 and each["rank"] == 0]
    return found


SAVED = {"what": "saved", "t0": 104, "t": 110.5, "node": "node2", "agent": "a", "pid": 7, "round": 1, "rank": 2}
LATE_WORKER = SAVED | {"what": "joined", "t": 113, "round": 2, "size": 3}
LATE_STEP = [*(each for each in two_rounds() if each != last_step()), last_step() | {"t": 112.5}]


@pytest.mark.parametrize(
    ("trace", "found"),
    [
        (two_rounds(), set()),
        (LATE_STEP, {"late_step"}),
        (in_order(LATE_STEP), {"late_step"}),
        (LATE_STEP[::-1], {"late_step"}),
        ([*two_rounds(), SAVED], {"late_saved"}),
        ([*two_rounds(), SAVED | {"t": 110}], set()),  # just in time
        (in_order(a_round(1, 2, 100) + a_round(2, 2, 103, steps=1)), {"two_worlds"}),
        (two_rounds(rank=1), {"ranks"}),
        ([each for each in two_rounds() if each["round"] != 1 or each["rank"] != 1], {"ranks"}),
        (two_rounds(size=4), {"sizes", "ranks"}),
        (a_round(5, 2, 100) + a_round(4, 2, 110), {"rounds"}),
        # it has the address of the store that is now another round's; the rank is free there
        ([*two_rounds(), LATE_WORKER], {"store", "sizes", "ranks"}),
        (in_order(a_round(1, 2, 100) + a_round(1, 2, 110)), {"ranks", "store"}),
    ],
)
def test_each_violation_is_found(trace: Trace, found: set[str]) -> None:
    assert kinds(trace) == found


@pytest.mark.parametrize(
    ("what", "t0", "cut", "healed", "found"),
    [
        ("step", 104.0, 105, 111.5, []),
        ("step", 104.0, 105, 109.9, ["late_step"]),  # it was told, and could have acted, before the new round began
        ("step", 104.0, 110.1, 111.5, ["late_step"]),
        ("step", 104.0, 105, 111.4, ["late_step"]),  # so long after it does know
        ("step", 110.2, 105, 111.5, ["two_worlds"]),
        ("saved", 104.0, 105, 111.5, ["late_saved"]),
    ],
)
def test_step_that_was_under_way_on_a_node_that_is_cut_off(
    what: str, t0: float, cut: float, healed: float, found: list[str]
) -> None:
    checker = Checker(heard_s=1.0)
    checker.cut("node0", cut)
    checker.healed("node0", healed)
    assert kinds([*two_rounds(), last_step() | {"what": what, "t0": t0, "t": 112.5}], checker) == {*found}
    assert bool(checker.excused) == (not found)


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ((9, 9, 500), False),
        ((9, 90, 9, 100), False),
        ((9, 9, 9, 43), False),
        ((9, 9, 9, 44, 9), False),
        ((9, 9, 9, 44), True),
    ],
)
def test_what_grows_is_more_than_the_first_rounds_have_needed(counts: tuple[int, ...], found: bool) -> None:
    assert grown(counts, room=30) == found


def test_what_an_agent_leaves_is_found_and_ended(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "600"], env={MARK: "of an agent"})
    with closing(Diary(tmp_path)) as diary:
        leftovers = Leftovers(diary)
        leftovers.due.append((0.0, AgentProcess("node0", process, tmp_path / "log", "of an agent")))
        leftovers.look()
    assert [(each.kind, each.evidence["node"]) for each in diary.violations] == [("left_behind", "node0")]
    assert process.wait(60) == -signal.SIGKILL
