"""The watch of one node over real processes; the other nodes are played: frozen, lying, gone, on their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kits.eventually import eventually

from rdzv_launcher.run.hangs import watch
from rdzv_launcher.run.hangs.watch import HangWatch
from rdzv_launcher.run.stacks import reading
from rdzv_launcher.run.stacks.node import NodeSnapshot, NodeStacks, StackedWorker
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.interfaces import Failure
from rdzv_plugins.questions import HANG, STACKS, STANDSTILL, RpcRequest, RpcResponse
from rdzv_plugins.shared_numbers import PROGRESS_VARIABLE, ProgressPage, progress

TIMEOUT = 1.0
STILL = {"node_rank": 1, "works": True, "watches": True, "workers": [[1, "waits", 99.0]]}
MOVES = {"node_rank": 1, "works": True, "watches": True, "workers": [[1, "moves", 0.0]]}
Other = Callable[[str], RpcResponse]


class Job:
    """A worker that sleeps, and the watch over it. Of the two nodes that are asked, this is the first."""

    def __init__(
        self,
        directory: Path,
        other: Other,
        nodes: int = 2,
        program: str = "import signal; signal.pause()",
        flags: tuple[str, ...] = ("-S",),
    ) -> None:
        self.worker = subprocess.Popen([sys.executable, *flags, "-c", program])
        self.asked: list[str] = []
        self.hangs: list[tuple[int, Failure]] = []
        workers = (StackedWorker(0, 0, self.worker.pid),)
        own = directory / "stacks"
        node = NodeSnapshot("here", os.getpid(), 0, workers, own, nodes=nodes, generation=1, works=True)
        self._stacks = NodeStacks(lambda: node, str(directory), on_request=True)
        self._other = other
        on_hang = lambda generation, failure: self.hangs.append((generation, failure))  # noqa: E731
        self.watch = HangWatch(TIMEOUT, 1, self._stacks, self, on_hang)

    def ask(self, kind: str, arguments: Mapping[str, Any], timeout: float) -> list[RpcResponse]:
        """All nodes."""
        self.asked.append(kind)
        return [RpcResponse(0, "here", 1, self.answer(kind, arguments)), self._other(kind)]

    def answer(self, kind: str, arguments: Mapping[str, Any]) -> Any:
        """This node's."""
        return (self._stacks if kind == STACKS else self.watch).answer(RpcRequest("0" * 32, kind, arguments))

    def wait_for_hang(self) -> Failure:
        eventually(lambda: self.hangs, lambda: f"no hang; asked: {self.asked}")
        return self.hangs[0][1]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def new(other: Other, **more: Any) -> Job:
        jobs.append(Job(tmp_path, other, **more))
        return jobs[-1]

    yield new
    for each in jobs:
        each.watch.close()
        each.worker.kill()
        each.worker.wait()


def answers(**by_kind: Any) -> Other:
    """The same each time."""
    return lambda kind: RpcResponse(1, "there", 2, by_kind.get(kind, {}))


def test_all_are_asked_and_told_before_the_agent_is(job: Callable[..., Job], tmp_path: Path) -> None:
    hanging = job(answers(standstill=STILL))
    os.kill(hanging.worker.pid, signal.SIGSTOP)
    failure = hanging.wait_for_hang()
    assert (failure.global_rank, failure.node_rank, failure.pid) == (0, 0, hanging.worker.pid)
    assert "stopped" in failure.hang
    assert hanging.asked[-3:] == [STACKS, STANDSTILL, HANG]
    assert hanging.hangs[0][0] == 1
    (stored,) = tmp_path.glob("stacks-*.log")
    assert stored.read_text().startswith("the job hangs\n")


@pytest.mark.parametrize("kind", [STANDSTILL, HANG])
def test_a_service_that_does_not_answer_once_hides_no_hang(job: Callable[..., Job], kind: str) -> None:
    """It is asked again; of the hang the others need not be told."""
    fails = [True]

    def other(asked: str) -> RpcResponse:
        if asked == kind and fails and fails.pop():
            raise ConnectionLost("it has gone")
        return answers(standstill=STILL)(asked)

    assert job(other).wait_for_hang().global_rank == 0
    assert not fails


def test_who_is_told_of_a_hang_that_goes_on_finds_it_later(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that has found it may have gone, or lie: it delays the others, and no more."""
    monkeypatch.setattr(watch, "_OTHERS_S", 0.5)
    hanging = job(answers(standstill=STILL))
    hanging.answer(HANG, {"by": "somebody", "text": "rank 1 is different"})
    assert hanging.wait_for_hang().global_rank == 0


def test_what_a_worker_writes_when_it_is_asked_is_no_sign_of_life(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without py-spy: it writes its stacks itself, thousands of bytes of them."""
    monkeypatch.setattr(reading, "py_spy", lambda: None)
    monkeypatch.setenv("RDZV_STACKS", f"{tmp_path / 'stacks'},{os.getpid()}")
    deep = "def wait(n):\n  threading.Event().wait() if n == 0 else wait(n - 1)"
    thread = "threading.Thread(target=wait, args=(90,), daemon=True).start()"  # more would take a busy machine long
    program = f"import signal, threading\nimport rdzv_plugins.worker\n{deep}\n{thread}\nwait(90)"
    (tmp_path / "stacks").mkdir(mode=0o700)
    hanging = job(answers(standstill=STILL), program=program, flags=())
    assert hanging.wait_for_hang().global_rank == 0
    assert (tmp_path / "stacks" / str(hanging.worker.pid)).stat().st_size > 4096


def test_who_is_told_of_a_hang_believes_nothing_and_stores_once(job: Callable[..., Job], tmp_path: Path) -> None:
    """Whoever reaches the service may say so."""
    told = job(answers(standstill=MOVES))
    for _ in range(3):
        told.answer(HANG, {"by": "somebody", "text": "rank 1 is\x1b[2J different"})
    told.answer(HANG, {"text": 5})
    (stored,) = tmp_path.glob("stacks-*.log")
    assert "found by another node: rank 1 is" in stored.read_text()
    assert "\x1b" not in stored.read_text()
    assert not told.hangs


def test_where_nobody_waits_a_loop_is_found_too(job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job whose ranks all loop, or spin: one is sampled now and then."""
    monkeypatch.setattr(watch, "_COST_S", 0.0)
    program = "import os\nos.nice(19)\nwhile True: pass"
    assert job(answers(), nodes=1, program=program).wait_for_hang().hang.startswith("runs ")


def test_progress_is_a_number_that_the_agent_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    page = ProgressPage(2)
    told = page.environment(5)
    monkeypatch.setenv(PROGRESS_VARIABLE, told[PROGRESS_VARIABLE])
    assert page.said_at(5) == 0
    progress()
    first = page.said_at(5)
    progress()
    assert 0 < first < page.said_at(5)
    assert page.said_at(4) == 0
    program = "from rdzv_plugins.worker import progress; progress()"
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | page.environment(4))
    assert page.said_at(4) > 0
    assert page.environment(5) == told
    assert page.said_at(5) == 0, "those of the next start have said nothing"
    page.close()
    for wrong in ("", "/nowhere,0", "/dev/null,0", "nonsense"):  # nothing comes of it
        monkeypatch.setenv(PROGRESS_VARIABLE, wrong)
        progress()
