"""What makes progress, what hangs, and who is different: judged from figures alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from rdzv_launcher.run.hangs import samples
from rdzv_launcher.run.hangs.odd_one import find
from rdzv_launcher.run.hangs.samples import Native, Sample
from rdzv_launcher.run.hangs.signs import Signs
from rdzv_launcher.run.hangs.standstill import Kind, Standing, Standstill
from rdzv_launcher.run.hangs.verdict import Judge, NodeStanding, standing_of
from rdzv_launcher.run.stacks.frames import Frame, Thread
from rdzv_launcher.run.stacks.grouping import is_meeting
from rdzv_launcher.run.stacks.reports import ProcessReport, WorkerReport
from rdzv_launcher.run.stacks.text import Silent
from rdzv_plugins.errors import JobHung
from rdzv_plugins.questions import NodeAnswer

FIRST = Signs(at=100.0, state="S", born=7, main_s=5.0, all_s=6.0, faults=0, moved=0)
CREDIT = 10.0


class Told:
    """A worker of which signs and samples are told, a second apart."""

    def __init__(self) -> None:
        self.signs = FIRST
        self.judge = Standstill(FIRST, CREDIT)
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


@pytest.fixture
def worker() -> Told:
    return Told()


def test_who_uses_no_processor_and_moves_nothing_waits(worker: Told) -> None:
    assert worker.seconds(20) == Standing("waits", 20.0)


def test_polls_heartbeats_and_watchdogs_are_waiting(worker: Told) -> None:
    assert worker.seconds(20, main_s=0.02, all_s=0.04, moved=100) == Standing("waits", 20.0)


@pytest.mark.parametrize("grows", [{"main_s": 0.5}, {"all_s": 0.5}, {"moved": 10**6}, {"faults": 3}])
def test_what_computes_reads_or_writes_makes_progress(worker: Told, grows: dict[str, float]) -> None:
    worker.seconds(9)
    assert worker.seconds(9, **grows) == Standing("moves")
    assert worker.seconds(5) == Standing("waits", 5.0)


def test_who_wants_a_processor_and_gets_none_does_not_wait(worker: Told) -> None:
    """Of a busy machine; its time in the queue is among that of the main thread."""
    assert worker.seconds(20, main_s=0.9) == Standing("moves")
    assert worker.seconds(1, state="R") == Standing("moves")


def test_what_its_processes_do_is_progress_of_its_own(worker: Told) -> None:
    assert worker.seconds(9, below=0.5) == Standing("moves")
    assert worker.seconds(9, below=0.0) == Standing("waits", 9.0)
    assert worker.seconds(9, below=0.02) == Standing("waits", 18.0), "heartbeats"


@pytest.mark.parametrize(("state", "kind"), [("T", "stopped"), ("D", "stuck")])
def test_states_of_the_kernel_say_why(worker: Told, state: str, kind: Kind) -> None:
    assert worker.seconds(9, state=state) == Standing(kind, 9.0)


def test_a_debugger_that_looks_for_a_moment_has_not_stopped_it(worker: Told) -> None:
    worker.seconds(9)
    assert worker.seconds(1, state="t") == Standing("waits", 10.0)


def test_time_in_which_nobody_looked_does_not_count(worker: Told) -> None:
    """The machine stood still, and the workers with it."""
    worker.seconds(5)
    worker.signs = replace(worker.signs, at=worker.signs.at + 3600)
    worker.judge.look(worker.signs)
    assert worker.judge.standing() == Standing("waits", 5.0 + CREDIT)


def test_an_endless_loop_is_lines_and_variables_that_were_all_seen_before(worker: Told) -> None:
    assert worker.burns([1, 2, 3, 1, 2]) == Standing("moves"), "too few samples"
    assert worker.burns([3, 1, 2, 3]) == Standing("loops", 6.0), "since the last new one"
    assert worker.burns([4]) == Standing("moves")


def test_what_was_sampled_long_ago_proves_nothing(worker: Told) -> None:
    assert worker.burns([1, 2] * 9).kind == "loops"
    assert worker.seconds(30, main_s=0.9) == Standing("moves")


def test_a_loop_over_ever_new_variables_makes_progress(worker: Told) -> None:
    assert worker.burns(list(range(100))) == Standing("moves")
    assert worker.burns([*range(12)] * 8) == Standing("moves"), "nor is a long round a loop"


@pytest.mark.parametrize(("native", "kind"), [("loop", "loops"), ("computes", "moves"), ("waits", "spins")])
def test_one_line_for_ever_is_told_by_what_is_below_python(worker: Told, native: Native, kind: Kind) -> None:
    assert worker.burns([1] * 9) == Standing("moves"), "as long as that is not known"
    assert worker.burns([1] * 9, native=native).kind == kind


def test_who_computes_first_and_then_waits_at_the_same_line_is_looked_at_again(worker: Told) -> None:
    assert worker.burns([1] * 9, native="computes") == Standing("moves")
    assert worker.burns([1] * 9, native="waits").kind == "spins"


def test_a_long_call_in_c_after_much_else_is_no_loop(worker: Told) -> None:
    """It may hold the interpreter's lock, as a sort does."""
    assert worker.burns([*range(5), *[9] * 9], native="computes") == Standing("moves")


def test_native_code_whose_stack_cannot_be_read_is_no_loop(worker: Told) -> None:
    """It has let go of the interpreter's lock."""
    assert worker.burns([1] * 9, runs=False, native="loop") == Standing("moves")


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("cudaMemcpyAsync", True),
        ("cuStreamSynchronize", True),
        ("gloo::transport::tcp::Pair::recv", True),
        ("ncclAllReduce", True),
        ("at::native::gemm", False),
        ("__memcpy_avx_unaligned", False),
    ],
)
def test_what_waits_for_others_or_for_the_device_is_known_by_its_name(name: str, waits: bool) -> None:
    assert bool(samples._WAITS.search(name)) == waits


def test_who_spins_in_a_meeting_waits_whatever_its_threads_do(worker: Told) -> None:
    assert worker.burns([1] * 9, runs=False, meets=True) == Standing("spins", 8.0)
    assert worker.burns([1] * 9, runs=False, meets=True, all_s=0.9) == Standing("spins", 17.0)


def test_who_works_for_a_meeting_makes_progress(worker: Told) -> None:
    """An object is made into bytes."""
    assert worker.burns([1] * 9, meets=True, native="computes") == Standing("moves")


def test_who_waits_for_threads_that_compute_makes_progress(worker: Told) -> None:
    assert worker.burns([1, 2] * 9, runs=False, all_s=0.9) == Standing("moves")


def test_once_a_script_says_that_it_lives_only_that_counts(worker: Told) -> None:
    worker.judge.tell(1)
    assert worker.seconds(9, main_s=0.9) == Standing("waits", 9.0)
    worker.judge.tell(2)
    assert worker.seconds(1) == Standing("waits", 1.0)


@pytest.mark.parametrize(
    ("file", "function", "meets"),
    [
        ("/v/torch/distributed/distributed_c10d.py", "all_reduce", True),
        ("/v/torch/cuda/__init__.py", "synchronize", True),
        ("/v/torch/cuda/__init__.py", "is_available", False),
        ("/v/torch/distributed/fsdp/_runtime_utils.py", "forward", False),
        ("/home/me/distributed/distributed_c10d.py", "all_reduce", False),
    ],
)
def test_where_workers_meet(file: str, function: str, meets: bool) -> None:
    assert is_meeting(file, function) == meets


def says(rank: int, *workers: Standing, works: bool = True, watches: bool = True) -> NodeAnswer:
    told = {10 * rank + local: each for local, each in enumerate(workers)}
    return NodeAnswer(rank, f"host-{rank}", 7, NodeStanding(rank, works, watches, told).data())


STILL, BUSY, DONE = Standing("waits", 60.0), Standing("moves"), Standing("done")
SILENT = NodeAnswer(1, "host-1", 7, None, "has not answered within 10 s", is_silent=True)
NONSENSE = NodeAnswer(1, "host-1", 7, {"node_rank": 1, "workers": 5})


@pytest.mark.parametrize(
    ("answers", "hangs", "in_s"),
    [
        ([says(0, STILL, STILL), says(1, STILL)], True, 0),
        ([says(0, STILL), says(1, Standing("stopped", 60.0))], True, 0),
        ([says(0, STILL), says(1, Standing("loops", 30.0))], True, 0),
        ([says(0, STILL), says(1, Standing("loops", 20.0))], False, 10),
        ([says(0, STILL, Standing("waits", 45.0)), says(1, STILL)], False, 15),
        ([says(0, STILL), says(1, BUSY)], False, math.inf),
        ([says(0, STILL), says(1, DONE)], True, 0),
        ([says(0, DONE), says(1, DONE)], False, math.inf),
        ([says(0, STILL), says(1, works=False)], False, math.inf),
        ([says(0, STILL), replace(says(-1, works=False), node_rank=1)], False, math.inf),
        ([says(0, STILL)], False, math.inf),
        ([says(0, STILL), replace(says(1, STILL), node_rank=None)], False, math.inf),
        ([says(0, STILL), says(1, STILL), says(2, BUSY)], True, 0),
    ],
)
def test_a_job_hangs_if_none_of_the_round_makes_progress(answers: list[NodeAnswer], hangs: bool, in_s: float) -> None:
    """The last of these is a spare."""
    verdict = Judge(60.0, 2).judge(answers, now=5.0)
    assert (verdict.hangs, verdict.in_s) == (hangs, in_s)


@pytest.mark.parametrize("answer", [SILENT, NONSENSE])
def test_a_node_of_which_nothing_comes_holds_nobody_up_for_ever(answer: NodeAnswer) -> None:
    judge = Judge(60.0, 2)
    assert judge.judge([says(0, STILL), answer], now=5.0).in_s == 120.0
    assert not judge.judge([says(0, STILL), answer], now=100.0).hangs
    verdict = judge.judge([says(0, STILL), answer], now=125.0)
    assert verdict.hangs
    assert verdict.silent == (answer,)
    assert not judge.judge([says(0, BUSY), answer], now=500.0).hangs, "as long as others make progress"


def test_a_node_that_has_answered_again_begins_anew() -> None:
    judge = Judge(60.0, 2)
    judge.judge([says(0, STILL), SILENT], now=5.0)
    assert not judge.judge([says(0, STILL), says(1, BUSY)], now=100.0).hangs
    assert judge.judge([says(0, STILL), SILENT], now=130.0).in_s == 120.0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (says(1, watches=False), "was started without --hang-timeout"),
        (replace(SILENT, is_silent=False, problem="does not know questions of kind"), "does not know questions"),
    ],
)
def test_a_node_that_cannot_tell_is_named(answer: NodeAnswer, why: str) -> None:
    verdict = Judge(60.0, 2).judge([says(0, STILL), answer], now=500.0)
    assert not verdict.hangs
    assert verdict.unknown.startswith(f"node 1 on host-1 {why}")


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"node_rank": "0", "works": True, "watches": True, "workers": []},
        {"node_rank": 0, "works": True, "watches": True, "workers": [[0, "dances", 5.0]]},
        {"node_rank": 0, "works": True, "watches": True, "workers": [[0, "waits", "5"]]},
        {"node_rank": 0, "works": True, "watches": True, "workers": [[0]]},
    ],
)
def test_what_is_no_standing_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        standing_of(data)


def test_times_that_are_none_prove_nothing() -> None:
    data = {"node_rank": 0, "works": True, "watches": True, "workers": [[0, "waits", math.inf]]}
    assert standing_of(data).workers[0].seconds == 0.0


REDUCES = (Frame("all_reduce", "/v/torch/distributed/distributed_c10d.py", 9), Frame("train", "/me/train.py", 3))
MEETS = (Frame("barrier", "/v/torch/distributed/distributed_c10d.py", 7), Frame("train", "/me/train.py", 5))
LOCKED = (Frame("batch", "/me/train.py", 8), Frame("train", "/me/train.py", 2))


def at(rank: int, frames: tuple[Frame, ...], state: str = "S", *, active: bool = False) -> WorkerReport:
    threads = (Thread("MainThread", True, frames, active),)
    process = ProcessReport(100 + rank, state, how="py-spy", threads=threads)
    return WorkerReport(rank, 0, rank, f"host-{rank}", process)


ALL_WAIT = dict.fromkeys(range(4), STILL)


@pytest.mark.parametrize(
    ("workers", "standings", "odd"),
    [
        ([at(0, REDUCES), at(1, REDUCES), at(2, REDUCES, "T")], ALL_WAIT, 2),
        ([at(0, LOCKED), at(1, REDUCES), at(2, REDUCES, "T")], ALL_WAIT, 2),
        ([at(0, REDUCES), at(1, REDUCES), at(2, LOCKED)], ALL_WAIT, 2),
        ([at(0, REDUCES), at(1, LOCKED)], ALL_WAIT, 1),
        ([at(0, REDUCES), at(1, MEETS), at(2, REDUCES)], ALL_WAIT, 1),
        ([at(0, MEETS), at(1, LOCKED, active=True), at(2, REDUCES)], {**ALL_WAIT, 1: Standing("loops", 9.0)}, 1),
    ],
)
def test_who_is_different(workers: list[WorkerReport], standings: dict[int, Standing], odd: int) -> None:
    hang = find(workers, (), (), standings, 60.0)
    assert hang.failure.global_rank == hang.failure.node_rank == odd
    assert hang.failure.exit_code == JobHung.exit_code
    assert hang.failure.hang.endswith(", and no worker of the job has made progress for 60 s")
    assert hang.failure.cause == hang.headline


def test_a_node_of_which_nothing_comes_is_the_one() -> None:
    silent = Silent("node 1 on host-1 (pid 7)", SILENT.problem)
    hang = find([at(0, REDUCES)], (SILENT,), (silent,), ALL_WAIT, 60.0)
    assert (hang.failure.node_rank, hang.failure.global_rank) == (1, -1)
    assert hang.failure.hang.startswith("does not answer, and no worker ")
    assert "1 node without an answer" in hang.headline
