"""The method of `rdzv bench`: who is measured when, that a delay is measured, and what a ratio may say."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.bench import odd_backends as odd
from kits.bench.bench_kit import bench, find, odd_backends, point, theirs

from rdzv_launcher.bench.children import exact_cpu_seconds, family_cpu_seconds
from rdzv_launcher.bench.points import DidNotFinish, Point, compare, in_turn, ratio_of, take_turns
from rdzv_launcher.bench.results import table

CHEAP = settings(deadline=None, derandomize=True, max_examples=40)


def quiet(case: str) -> None:
    """Nobody waits for it."""


def test_cpu_is_that_of_threads_that_have_ended_and_of_all_below() -> None:
    own = (
        "import os, threading, time\n"
        "def work():\n  while time.thread_time() < 0.2: pass\n"
        "done = threading.Thread(target=work)\ndone.start(); done.join()\n"
        "for waited in (True, False):\n"
        "  if not (pid := os.fork()):\n    work(); print(1, flush=True); waited or input(); os._exit(0)\n"
        "  waited and os.waitpid(pid, 0)\n"
        "input()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-S", "-c", own], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["1\n"] * 2
        assert exact_cpu_seconds(process.pid) >= 0.2
        assert family_cpu_seconds(process.pid) > exact_cpu_seconds(process.pid) + 0.3  # ticks of 10 ms
        process.communicate("\n\n")
    assert family_cpu_seconds(process.pid) == 0
    with pytest.raises(OSError, match=r"\[Errno \d+\]"):
        exact_cpu_seconds(process.pid)


# turns


@given(st.lists(st.integers(), unique=True, max_size=6).map(lambda names: [*map(str, names)]), st.integers(0, 20))
@CHEAP
def test_each_turn_has_all_and_two_in_a_row_have_every_pair_both_ways(targets, turn) -> None:
    orders = [in_turn(targets, 2 * turn), in_turn(targets, 2 * turn + 1)]
    assert all(sorted(order) == sorted(targets) for order in orders)
    for one, other in permutations(targets, 2):
        assert [order.index(one) < order.index(other) for order in orders].count(True) == 1
    firsts = Counter(in_turn(targets, turn)[0] for turn in range(2 * len(targets)))
    assert firsts == dict.fromkeys(targets, 2)


def test_warm_up_is_run_and_not_kept_and_who_takes_too_long_is_measured_once() -> None:
    asked = []

    def measure(target: str, turn: int) -> int:
        asked.append((turn, target))
        return turn

    turns = take_turns("case", ["a", "b"], measure, repeats=3, begins=quiet)
    assert sorted(asked) == [(turn, target) for turn in (-1, 0, 1, 2) for target in "ab"]
    assert [turn for turn, _ in asked] == sorted(turn for turn, _ in asked)
    assert (turns.samples, turns.unfinished) == ({"a": [0, 1, 2], "b": [0, 1, 2]}, {})
    cold = take_turns("case", ["a", "b"], measure, repeats=2, begins=quiet, warm_up=False)
    assert cold.samples == {"a": [0, 1], "b": [0, 1]}
    slow = take_turns("case", ["a"], measure, repeats=3, begins=quiet, once=lambda turn: turn > 0)
    assert slow.samples == {"a": [0, 1]}


def test_who_does_not_finish_is_a_result_and_not_asked_again_and_a_fault_ends_the_benchmark() -> None:
    def measure(target: str, turn: int) -> int:
        if target == "slow" and turn == 1:
            raise DidNotFinish("12 of 64 nodes had joined after 60 s")
        if target == "broken":
            raise OSError("no such program")
        return turn

    given_up: dict[str, str] = {}
    turns = take_turns("64 nodes", ["slow", "fast"], measure, repeats=4, begins=quiet, given_up=given_up)
    assert turns.samples == {"slow": [0], "fast": [0, 1, 2, 3]}
    assert turns.unfinished == {"slow": "12 of 64 nodes had joined after 60 s"}
    more = take_turns("256 nodes", ["slow", "fast"], measure, repeats=1, begins=quiet, given_up=given_up)
    assert more.samples == {"slow": [], "fast": [0]}
    assert more.unfinished == {"slow": "12 of 64 nodes had joined after 60 s (64 nodes)"}
    with pytest.raises(OSError, match="no such program"):
        take_turns("case", ["broken"], measure, repeats=1, begins=quiet)


def test_delay_of_a_backend_is_what_the_benchmark_measures(tmp_path) -> None:
    nodes = 4
    flags = ("--backends=prompt,slow", "--references=none", f"--nodes={nodes}", "--quick", "--repeats=2", "--json")
    simulated = ("--simulate=1",)
    began = time.perf_counter()
    result = bench("rendezvous", *simulated, *flags, sites=odd_backends(tmp_path)).result()
    passed = time.perf_counter() - began
    prompt, slow = (find(result, f"{nodes} nodes", name, "join") for name in ("prompt", "slow"))
    assert (prompt.unit, len(prompt.samples), len(slow.samples)) == ("s", 2, 2)
    assert min(slow.samples) >= odd.DELAY_S
    assert sum(prompt.samples) + sum(slow.samples) <= passed  # nothing is counted twice
    added = min(slow.samples) - min(prompt.samples)  # a busy machine only adds
    assert odd.DELAY_S / 2 < added < odd.DELAY_S * (nodes - 1)  # nodes wait at the same time
    assert result.manifest["versions"]["rdzv-odd"] == "7.5"


# ratios


def test_clear_ratio_is_that_of_the_turns() -> None:
    ratio = ratio_of(point("mine", 1.0, 2.0, 1.5), theirs(10.0, 10.0, 12.0))
    assert (ratio.value, ratio.low, ratio.high) == (0.125, 0.1, 0.2)
    assert (ratio.target, ratio.reference, ratio.figure, ratio.refused) == ("mine", "torch", "join", "")


REFUSED = [
    (point("mine", 1.0, 2.0, 1.0), theirs(1.1, 1.0, 1.2), "the runs of mine differ by 2.00"),
    (point("mine", 1.0, 1.0), theirs(1.1, 3.0), "the runs of torch differ by 2.73"),
    (point("mine", 0.4, 1.0), theirs(1.0, 1.0), "the runs of mine differ by 2.50"),
    (point("mine", 1.0), theirs(5.0), "one run each"),
    (point("mine", 1.0, 1.0), theirs(5.0), "one run each"),
    (point("mine", 0.0, 0.0), theirs(5.0, 5.0), "it is 0"),
    (point("mine", 1.0, 1.0), theirs(0.0, 0.0), "nothing to divide by"),
    (point("mine", 0.0, 1.0, 1.0), theirs(5.0, 5.0, 5.0), "mine: 0 in some runs"),
    (point("mine", 1.0, 1.0), theirs(unfinished="too slow"), "torch was not measured"),
    (point("mine", 1.0, 1.0, unfinished="hung"), theirs(5.0, 5.0), "mine did not finish"),
    (point("mine", 1.0, 1.0), theirs(5.0, 5.0, unfinished="hung"), "torch did not finish"),
    (point("mine"), theirs(1.0, 1.0), "mine was not measured"),
]


@pytest.mark.parametrize(("mine", "other", "why"), REFUSED)
def test_ratio_that_says_nothing_is_refused(mine, other, why) -> None:
    (ratio,) = compare([mine, other])
    assert ratio.value is None
    assert why in ratio.refused
    text = table("64 nodes", [mine, other], [ratio])
    assert "of torch" not in text.replace("runs of torch", "")
    assert (f"no ratio to torch: {ratio.refused}" in text) == (ratio.low is not None)


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=6), st.floats(0.01, 100))
@CHEAP
def test_printed_ratio_is_larger_than_what_runs_differ_by(samples, factor) -> None:
    mine, other = point("mine", *(factor * sample for sample in samples)), theirs(*samples)
    ratio = ratio_of(mine, other)
    spread, by = max(samples) / min(samples), max(factor, 1 / factor)
    if not math.isclose(spread, by, rel_tol=1e-6):
        assert (ratio.value is None) == (spread > by)
    assert (ratio.value is None) == bool(ratio.refused)


def test_every_target_is_compared_with_every_reference_of_its_case_and_figure() -> None:
    points = [
        point("a", 1, 1),
        point("b", 2, 2),
        theirs(4, 4),
        Point("test", "64 nodes", "torch-static", "join", "join", "s", (8, 8), reference=True),
        point("a", 3, 3, figure="loss"),
        point("a", 3, 3, case="16 nodes"),
    ]
    assert {(r.target, r.reference, r.figure, r.case): r.value for r in compare(points)} == {
        ("a", "torch", "join", "64 nodes"): 0.25,
        ("b", "torch", "join", "64 nodes"): 0.5,
        ("a", "torch-static", "join", "64 nodes"): 0.125,
        ("b", "torch-static", "join", "64 nodes"): 0.25,
    }
