"""What makes progress, what hangs, and who is different: judged from figures alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from rdzv_launcher.run.hangs.verdict import (
    Judge,
    Native,
    NodeStanding,
    ProgressSignals,
    Sample,
    StallDetector,
    Standing,
    find_outlier,
)
from rdzv_launcher.run.stacks.reports import Frame, ProcessReport, Silent, Thread, WorkerReport, is_meeting
from rdzv_plugins.errors import JobHung
from rdzv_plugins.questions import RpcResponse, checked

FIRST = ProgressSignals(at=100.0, state="S", born=7, main_s=5.0, all_s=6.0, faults=0, moved=0)
CREDIT = 10.0


class Told:
    """A worker of which signs and samples are told, a second apart."""

    def __init__(self) -> None:
        self.signs = FIRST
        self.judge = StallDetector(FIRST, CREDIT)
        self._below = 3.0

    def seconds(self, count: int, *, below: float | None = None, state: str = "S", **more: float) -> Standing:
        """``more``: by how much a figure grows in each."""
        for _ in range(count):
            grown: dict[str, Any] = {name: getattr(self.signs, name) + each for name, each in more.items()}
            self.signs = replace(self.signs, at=self.signs.at + 1, state=state, **grown)
            self._below += below or 0.0
            self.judge.look(self.signs, None if below is None else self._below)
        return self.judge.standing()

    def burns(
        self, prints: list[int], *, runs: bool = True, meets: bool = False, native: Native | None = None, **more: float
    ) -> Standing:
        """It uses a processor, and a sample is taken each second."""
        more = more or {"main_s": 0.9, "all_s": 0.9}
        for each in prints:
            self.seconds(1, **more)
            self.judge.sample(Sample(self.signs.at, each, runs, meets))
            if native is not None and self.judge.wants_native:
                self.judge.native(native)
        return self.judge.standing()


MOVES = Standing("moves")


def waits(seconds: float) -> Standing:
    return Standing("waits", seconds)


@pytest.mark.parametrize(
    ("told", "standing"),
    [
        ([(20, {})], waits(20.0)),
        # polls, heartbeats and watchdogs
        ([(20, {"main_s": 0.02, "all_s": 0.04, "moved": 100})], waits(20.0)),
        ([(9, {}), (9, {"main_s": 0.5})], MOVES),
        ([(9, {}), (9, {"all_s": 0.5})], MOVES),
        ([(9, {}), (9, {"moved": 10**6})], MOVES),
        ([(9, {}), (9, {"faults": 3})], MOVES),
        ([(9, {}), (9, {"main_s": 0.5}), (5, {})], waits(5.0)),
        # on a busy machine: the time in the queue for a processor is among that of the main thread
        ([(20, {"main_s": 0.9})], MOVES),
        ([(20, {"main_s": 0.9}), (1, {"state": "R"})], MOVES),
        # what its processes do is progress of its own, but for heartbeats
        ([(9, {"below": 0.5})], MOVES),
        ([(9, {"below": 0.5}), (9, {"below": 0.0})], waits(9.0)),
        ([(9, {"below": 0.5}), (9, {"below": 0.0}), (9, {"below": 0.02})], waits(18.0)),
        ([(9, {"state": "T"})], Standing("stopped", 9.0)),
        ([(9, {"state": "D"})], Standing("stuck", 9.0)),
        # a debugger that looks for a moment has not stopped it
        ([(9, {}), (1, {"state": "t"})], waits(10.0)),
    ],
)
def test_who_waits_and_who_makes_progress(told: list[tuple[int, Any]], standing: Standing) -> None:
    worker = Told()
    assert [worker.seconds(count, **more) for count, more in told][-1] == standing


ONE_LINE = [1] * 9


@pytest.mark.parametrize(
    ("told", "standings"),
    [
        # an endless loop is lines and variables that were all seen before, since the last new one; few are no proof
        ([([1, 2, 3, 1, 2], {}), ([3, 1, 2, 3], {}), ([4], {})], [MOVES, Standing("loops", 6.0), MOVES]),
        # a loop over ever new variables; a long round
        ([(list(range(100)), {}), ([*range(12)] * 8, {})], [MOVES, MOVES]),
        # one line for ever is told by what is below Python, as soon as that is known
        ([(ONE_LINE, {}), (ONE_LINE, {"native": "loop"})], [MOVES, "loops"]),
        ([(ONE_LINE, {}), (ONE_LINE, {"native": "computes"})], [MOVES, MOVES]),
        ([(ONE_LINE, {}), (ONE_LINE, {"native": "waits"})], [MOVES, "spins"]),
        # it computes first, then waits at the same line
        ([(ONE_LINE, {"native": "computes"}), (ONE_LINE, {"native": "waits"})], [MOVES, "spins"]),
        # a long call in C after much else, which may hold the interpreter's lock, as a sort does
        ([([*range(5), *[9] * 9], {"native": "computes"})], [MOVES]),
        # native code whose stack cannot be read has let go of the interpreter's lock
        ([(ONE_LINE, {"runs": False, "native": "loop"})], [MOVES]),
        # who spins in a meeting waits, whatever its threads do; who makes an object into bytes for it works
        (
            [(ONE_LINE, {"runs": False, "meets": True}), (ONE_LINE, {"runs": False, "meets": True, "all_s": 0.9})],
            [Standing("spins", 8.0), Standing("spins", 17.0)],
        ),
        ([(ONE_LINE, {"meets": True, "native": "computes"})], [MOVES]),
        # who waits for threads that compute
        ([([1, 2] * 9, {"runs": False, "all_s": 0.9})], [MOVES]),
    ],
)
def test_who_loops_spins_or_computes(told: list[tuple[list[int], Any]], standings: list[Standing | str]) -> None:
    worker = Told()
    found = [worker.burns(prints, **more) for prints, more in told]
    wanted = zip(found, standings, strict=True)
    assert [each.kind if isinstance(kind, str) else each for each, kind in wanted] == standings


def test_what_counts_when_nobody_looked_or_the_script_says_that_it_lives() -> None:
    stood_still, sampled, tells = Told(), Told(), Told()
    stood_still.seconds(5)
    stood_still.signs = replace(stood_still.signs, at=stood_still.signs.at + 3600)  # the machine, and its workers
    stood_still.judge.look(stood_still.signs)
    assert stood_still.judge.standing() == waits(5.0 + CREDIT)
    assert sampled.burns([1, 2] * 9).kind == "loops"
    assert sampled.seconds(30, main_s=0.9) == MOVES, "that was long ago"
    tells.judge.tell(1)
    assert tells.seconds(9, main_s=0.9) == waits(9.0), "only what it says counts"
    tells.judge.tell(2)
    assert tells.seconds(1) == waits(1.0)


@pytest.mark.parametrize(
    ("file", "function", "meets"),
    [
        ("/v/torch/distributed/distributed_c10d.py", "all_reduce", True),
        ("/v/torch/cuda/__init__.py", "synchronize", True),
        ("/v/torch/cuda/__init__.py", "is_available", False),
        ("/home/me/distributed/distributed_c10d.py", "all_reduce", False),
    ],
)
def test_where_workers_meet(file: str, function: str, meets: bool) -> None:
    assert is_meeting(file, function) == meets


def says(rank: int, *workers: Standing, works: bool = True, watches: bool = True) -> RpcResponse:
    told = [(10 * rank + local, each.kind, each.seconds) for local, each in enumerate(workers)]
    return RpcResponse(rank, f"host-{rank}", 7, to_builtins(NodeStanding(rank, works, watches, told)))


STILL, DONE = waits(60.0), Standing("done")
SILENT = RpcResponse(1, "host-1", 7, None, "has not answered within 10 s", is_silent=True)
NONSENSE = RpcResponse(1, "host-1", 7, {"node_rank": 1, "workers": 5})


@pytest.mark.parametrize(
    ("answers", "hangs", "in_s"),
    [
        ([says(0, STILL, STILL), says(1, STILL)], True, 0),
        ([says(0, STILL), says(1, Standing("stopped", 60.0))], True, 0),
        ([says(0, STILL), says(1, Standing("loops", 30.0))], True, 0),
        ([says(0, STILL), says(1, Standing("loops", 20.0))], False, 10),
        ([says(0, STILL, waits(45.0)), says(1, STILL)], False, 15),
        ([says(0, STILL), says(1, MOVES)], False, math.inf),
        ([says(0, STILL), says(1, DONE)], True, 0),
        ([says(0, DONE), says(1, DONE)], False, math.inf),
        ([says(0, STILL), says(1, works=False)], False, math.inf),
        ([says(0, STILL), replace(says(-1, works=False), node_rank=1)], False, math.inf),
        ([says(0, STILL)], False, math.inf),
        ([says(0, STILL), replace(says(1, STILL), node_rank=None)], False, math.inf),
        ([says(0, STILL), says(1, STILL), says(2, MOVES)], True, 0),  # the last is a spare
    ],
)
def test_a_job_hangs_if_none_of_the_round_makes_progress(answers: list[RpcResponse], hangs: bool, in_s: float) -> None:
    verdict = Judge(60.0, 2).judge(answers, now=5.0)
    assert (verdict.hangs, verdict.in_s) == (hangs, in_s)
    loops = {rank for each in answers for rank, kind, _ in each.answer["workers"] if kind == "loops"}
    assert verdict.loops == loops


@pytest.mark.parametrize("answer", [SILENT, NONSENSE])
def test_a_node_of_which_nothing_comes_holds_nobody_up_for_ever(answer: RpcResponse) -> None:
    judge, of_both = Judge(60.0, 2), [says(0, STILL), answer]
    assert judge.judge(of_both, now=5.0).in_s == 120.0
    assert not judge.judge(of_both, now=100.0).hangs
    verdict = judge.judge(of_both, now=125.0)
    assert (verdict.hangs, verdict.silent) == (True, (answer,))
    assert not judge.judge([says(0, MOVES), answer], now=500.0).hangs, "as long as others make progress"
    judge.judge([says(0, STILL), says(1, MOVES)], now=510.0)
    assert judge.judge(of_both, now=520.0).in_s == 120.0, "it has answered meanwhile"


def test_a_node_that_cannot_tell_is_named() -> None:
    for answer, why in (
        (says(1, watches=False), "--hang-timeout"),
        (replace(SILENT, is_silent=False, problem="does not know questions of kind"), "does not know questions"),
    ):
        verdict = Judge(60.0, 2).judge([says(0, STILL), answer], now=500.0)
        assert not verdict.hangs
        assert verdict.unknown.startswith("node 1 on host-1 ")
        assert why in verdict.unknown


def test_what_is_no_standing_is_refused_and_times_that_are_none_prove_nothing() -> None:
    data = {"node_rank": 0, "works": True, "watches": True}
    for worker in ([0, "dances", 5.0], [0, "waits", "5"], [0]):
        with pytest.raises(ValueError, match=r"."):
            checked(data | {"workers": [worker]}, NodeStanding)
    standing = checked(data | {"workers": [[0, "waits", math.inf]]}, NodeStanding)
    assert standing.by_rank[0].seconds == 0.0


TORCH, TRAIN = "/v/torch/distributed/distributed_c10d.py", "/me/train.py"
REDUCES = (Frame("all_reduce", TORCH, 9), Frame("train", TRAIN, 3))
MEETS = (Frame("barrier", TORCH, 7), Frame("train", TRAIN, 5))
LOCKED = (Frame("batch", TRAIN, 8), Frame("train", TRAIN, 2))


def at(rank: int, frames: tuple[Frame, ...], state: str = "S", *, active: bool = False) -> WorkerReport:
    threads = (Thread("MainThread", True, frames, active),)
    process = ProcessReport(100 + rank, state, how="py-spy", threads=threads)
    return WorkerReport(rank, 0, rank, f"host-{rank}", process)


@pytest.mark.parametrize(
    ("workers", "loops", "odd"),
    [
        ([at(0, REDUCES), at(1, REDUCES), at(2, REDUCES, "T")], set(), 2),
        ([at(0, LOCKED), at(1, REDUCES), at(2, REDUCES, "T")], set(), 2),
        ([at(0, REDUCES), at(1, REDUCES), at(2, LOCKED)], set(), 2),
        ([at(0, REDUCES), at(1, LOCKED)], set(), 1),
        ([at(0, REDUCES), at(1, MEETS), at(2, REDUCES)], set(), 1),
        ([at(0, MEETS), at(1, LOCKED, active=True), at(2, REDUCES)], {1}, 1),
    ],
)
def test_who_is_different(workers: list[WorkerReport], loops: set[int], odd: int) -> None:
    failure = find_outlier(workers, (), (), loops, 60.0)
    assert (failure.global_rank, failure.node_rank, failure.exit_code) == (odd, odd, JobHung.exit_code)
    assert "60 s" in failure.hang
    assert failure.cause.startswith(f"{len(workers)} workers on {len(workers)} nodes: rank {odd} ")


def test_a_node_of_which_nothing_comes_is_the_one() -> None:
    silent = Silent("node 1 on host-1 (pid 7)", SILENT.problem)
    failure = find_outlier([at(0, REDUCES)], (SILENT,), (silent,), frozenset(), 60.0)
    assert (failure.node_rank, failure.global_rank) == (1, -1)
    assert "1 node without an answer" in failure.cause
