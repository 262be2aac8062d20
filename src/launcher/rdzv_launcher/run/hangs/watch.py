"""The watch for hangs: looks at this node's workers, asks the other nodes when one stands still, and tells the agent.

Signs of life are looked at every time, places only while a hang is suspected. A node whose workers wait does not know
by itself that the job hangs: those of another node may be computing. So it asks all of them, in the same way as ``rdzv
stacks``. The node with the lowest rank asks first, and the others leave it to that node for a while, so that one node
asks and not all.

Signs of life are what the kernel counts (/proc): cheap to read, and nothing runs in the worker. Places are sampled by
py-spy; values of variables are not passed on: only a number is.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from rdzv_launcher.run.hangs.verdict import (
    SUSPECTED,
    Judge,
    Native,
    NodeStanding,
    ProgressSignals,
    Sample,
    StallDetector,
    Standing,
    Verdict,
    find_outlier,
)
from rdzv_launcher.run.stacks import processes, reading
from rdzv_launcher.run.stacks.node import NodeSnapshot, NodeStacks, StackedWorker
from rdzv_launcher.run.stacks.reports import Silent, is_meeting, read
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.interfaces import Failure
from rdzv_plugins.plain_text import printable
from rdzv_plugins.questions import HANG, STACKS, STANDSTILL, NodeRpc, RpcRequest, RpcResponse
from rdzv_plugins.runtime import OwnThread
from rdzv_plugins.shared_numbers import ProgressPage
from rdzv_plugins.system.processes import children_now, read_stat

logger = logging.getLogger(__name__)

_WAITS = re.compile(r"(?i)nccl|hccl|rccl|gloo::|c10d|(?:cu|cuda|hip|acl|npu)\w*(?:synchronize|query|memcpy)")
_NATIVE_LOOKS = 2
"""How many looks must find no native code: a stack may be one that cannot be read."""
_SAMPLE_S, _NATIVE_S = 5.0, 15.0
"""Time limits for one sample, and for one with native frames."""


def read_progress_signals(pid: int, asked: Path | None) -> ProgressSignals | None:
    """The signs of a process; None if it has ended.

    ``asked`` is the directory to which workers write when an agent asks for their stacks; that is not a sign of life.
    """
    stat = read_stat(pid)
    if stat is None or not stat.lives:
        return None
    main_s, born = _main_s(pid, stat.cpu_s), int(stat.started)
    return ProgressSignals(
        time.monotonic(), stat.state, born, main_s, stat.cpu_s, stat.major_faults, _moved(pid, asked)
    )


def below_s(pid: int, pids_of: Callable[[int], list[int]]) -> float:
    """The processor time that all processes below one got or wanted, in seconds. ``pids_of``: like ``children_now``."""
    total = 0.0
    for each in processes.below(pid, pids_of):
        if stat := read_stat(each):
            total += max(stat.cpu_s, _main_s(each, stat.cpu_s))
    return total


def _main_s(pid: int, otherwise: float) -> float:
    """The time of the main thread, including its time in the queue; ``otherwise`` if the kernel does not say."""
    schedstat = processes.read(pid, "schedstat").split()
    return sum(map(int, schedstat[:2])) / 1e9 if len(schedstat) == 3 else otherwise


def _moved(pid: int, asked: Path | None) -> int:
    lines = processes.read(pid, "io").splitlines()[:2]  # rchar, wchar
    if not lines:
        return 0
    try:
        written = (asked / str(pid)).stat().st_size if asked is not None else 0
    except OSError:  # it writes none
        written = 0
    return sum(int(line.rpartition(" ")[2]) for line in lines) - written


def take_sample(process: processes.StackedProcess) -> Sample:
    """Take a sample of a Python process; this pauses it for some milliseconds. Raises ``NoStacks``."""
    at = time.monotonic()
    main = _main_thread(process, "--locals", _SAMPLE_S)
    frames = main["frames"]
    values = tuple((frame["name"], frame["filename"], frame["line"], *_values(frame)) for frame in frames)
    meets = any(is_meeting(str(frame["filename"]), str(frame["name"])) for frame in frames[:1])
    return Sample(at, hash(values), bool(main["active"] and main["owns_gil"]), meets)


def below_python(process: processes.StackedProcess) -> Native:
    """What the main thread does in native code; finding out takes seconds. Raises ``NoStacks``."""
    for _ in range(_NATIVE_LOOKS):
        frames = _main_thread(process, "--native", _NATIVE_S)["frames"]
        # what its innermost line of Python is in, or has called
        native = [str(frame["name"]) for frame in itertools.takewhile(lambda frame: not frame["line"], frames)]
        if native:
            return "waits" if any(_WAITS.search(name) for name in native) else "computes"
    return "loop"


def _values(frame: dict[str, Any]) -> Sequence[object]:
    return [(each["name"], each["addr"], each["repr"]) for each in frame["locals"] or ()]


def _main_thread(process: processes.StackedProcess, flag: str, timeout: float) -> dict[str, Any]:
    threads = reading.py_spy_threads(process, (flag,), timeout=timeout)
    found = next((each for each in threads if each["os_thread_id"] == process.pid), None)
    if found is None:
        found = next((each for each in threads if each["thread_name"] == "MainThread"), None)
    if found is None:
        raise reading.NoStacks("py-spy has found no main thread")
    return found


_CREDIT, _LEAST_CREDIT_S = 1 / 8, 3.0
"""The part of the time-out that one look may account for: a watch that is late stood still itself, with the workers."""
_UNREAD = 5
_SHARE = 1000.0
"""Samples without a suspicion may cost a thousandth of a processor."""
_COST_S = 0.1
"""The processor time that one sample takes, including the start of py-spy."""


class NodeWatch:
    """Watches this node's workers for progress. One per agent. ``look`` is for one thread; the rest is for any."""

    def __init__(
        self, timeout: float, told: Callable[[int], int], stacks: NodeStacks, say: Callable[[str], None]
    ) -> None:
        """``timeout`` is in seconds. ``told`` returns, by global rank, a number that changes when a script reports
        progress, and is 0 as long as it never has. ``say`` shows people a message, once.
        """
        self._timeout, self._told, self._stacks, self._say = timeout, told, stacks, say
        self._generation = 0
        self._watched: dict[int, StallDetector] = {}
        self._suspected_until = 0.0
        self._canary_at = 0.0
        self._canary: int | None = None
        self._unread = 0
        """The number of samples in a row that could not be taken."""
        self.standing = NodeStanding(-1, works=False, watches=True)
        """How its workers stand, as of the last look."""

    @property
    def longest_s(self) -> float:
        """The longest time for which a worker has stood still."""
        return max((each.seconds for each in self.standing.by_rank.values() if each.is_still), default=0.0)

    def suspect(self) -> None:
        """A hang is suspected: for the time-out from now on, workers that use a processor are sampled."""
        self._suspected_until = time.monotonic() + self._timeout

    def look(self, node: NodeSnapshot) -> None:
        now = time.monotonic()
        if node.generation != self._generation:
            self._generation, self._watched, self._suspected_until = node.generation, {}, 0.0
            self._canary, self._canary_at = None, now + self._canary_pause
        pids_of = functools.cache(children_now)  # some kernels make it read all processes: once, where it matters
        found = [(each.rank, self._look_at(each, now, pids_of)) for each in node.workers] if node.works else []
        rank = -1 if node.node_rank is None else node.node_rank
        workers = [(worker, each.kind, each.seconds) for worker, each in found]
        self.standing = NodeStanding(rank, node.works, watches=True, workers=workers)
        if now >= self._canary_at and node.works:
            self._canary_at = now + self._canary_pause
            self._look_at_canary(node.workers)

    def _look_at(
        self, worker: StackedWorker, now: float, pids_of: Callable[[], Callable[[int], list[int]]]
    ) -> Standing:
        signs = read_progress_signals(worker.pid, self._stacks.own)
        watched = self._watched.get(worker.rank)
        if signs is None or (watched is not None and watched.born != signs.born):
            return Standing("done")
        if watched is None:
            self._watched[worker.rank] = StallDetector(signs, max(self._timeout * _CREDIT, _LEAST_CREDIT_S))
            return Standing("moves")
        late = watched.quiet_s >= self._timeout * SUSPECTED / 2
        watched.look(signs, below_s(worker.pid, pids_of()) if late else None)
        watched.tell(self._told(worker.rank))
        if now < self._suspected_until and not watched.standing().is_quiet:
            self._sample(worker, watched)
        return watched.standing()

    def _sample(self, worker: StackedWorker, watched: StallDetector | None = None) -> int | None:
        """Sample a worker, for ``watched`` if that is given; returns the sample's print.

        None if it cannot be sampled: the worker then counts as making progress.
        """
        with self._stacks.debugging:
            process = processes.look(worker.pid)
            if process is None or process.stands_still:
                return None
            try:
                sample = take_sample(process)
                self._unread = 0
                if watched is not None:
                    watched.sample(sample)
                    if watched.wants_native:
                        watched.native(below_python(process))
            except reading.NoStacks as error:
                logger.debug("worker %d (pid %d) cannot be sampled: %s", worker.local_rank, worker.pid, error)
                self._unread += 1  # a process that is just starting or ending cannot be read, either
                if self._unread == _UNREAD and reading.py_spy() is not None:
                    self._say(
                        "--hang-timeout: py-spy cannot read the workers; until it can, a rank in an endless loop looks "
                        f"like one that computes: {error}"
                    )
                return None
        return sample.print

    @property
    def _canary_pause(self) -> float:
        return max(self._timeout / 4, _COST_S * _SHARE)

    def _look_at_canary(self, workers: tuple[StackedWorker, ...]) -> None:
        """Sample one worker of the node now and then: where all ranks spin or loop, none of them waits."""
        standings = self.standing.by_rank
        busy = [each for each in workers if standings[each.rank].kind == "moves"]
        if len(busy) < len(workers) or not busy:
            return
        seen = self._sample(busy[0])
        if seen is not None:
            if seen == self._canary:
                self.suspect()
            self._canary = seen


_LOOKS, _LEAST_LOOK_S, _LONGEST_LOOK_S = 32, 0.25, 10.0
"""How many looks are taken within the time-out, unless that is very short or very long."""
_ANSWER_S, _STACKS_S, _TOLD_S = 10.0, 15.0, 10.0
"""Time limits for the nodes' answers: how their workers stand, where they are, and that they have heard."""
_OTHERS_S = 10.0
"""How long beyond the time-out a node leaves the asking to another one."""
_PATIENT_RANKS = 8
_LONGEST_TEXT = 2000


class HangWatch:
    """Watches whether the job hangs. One per agent, with its own thread. Thread-safe."""

    def __init__(
        self,
        timeout: float,
        workers: int,
        stacks: NodeStacks,
        questions: NodeRpc | None,
        on_hang: Callable[[int, Failure], None],
    ) -> None:
        """``timeout`` is in seconds; ``workers`` is the number of workers on this node.

        ``on_hang`` is called on the thread of the watch, with the generation of the workers and the one that is
        different.
        """
        self._timeout, self._stacks, self._questions, self._on_hang = timeout, stacks, questions, on_hang
        self._page = ProgressPage(workers)
        self._node = NodeWatch(timeout, self._page.said_at, stacks, self._say_once)
        self._me = os.urandom(16).hex()
        self._pause = min(max(timeout / _LOOKS, _LEAST_LOOK_S), _LONGEST_LOOK_S)
        self._generation = 0
        self._judge = Judge(timeout, 0)
        self._ask_at = self._asked_at = 0.0
        self._leave_until = 0.0
        """Another node has found that the job hangs: until then, the rest is left to that node."""
        self._stored_for = -1
        """The generation whose stacks were stored."""
        self._said: set[str] = set()
        self._closed = threading.Event()
        if reading.py_spy() is None:
            self._say_once(
                "--hang-timeout: a rank in an endless loop looks like one that computes, as py-spy is not installed "
                f"({reading.INSTALL})"
            )
        OwnThread(target=self._run, name="rdzv-hangs").start()

    def environment(self, global_rank: int) -> dict[str, str]:
        return self._page.environment(global_rank)

    def close(self) -> None:
        """End the watch: whatever happens from now on is not a hang. Does not wait for a question in progress."""
        self._closed.set()
        self._page.close()

    def answer(self, question: RpcRequest) -> Any:
        """Like ``questions.Answer``: for ``standstill`` and ``hang``."""
        if question.kind == STANDSTILL:
            if question.arguments.get("by") != self._me:
                self._asked_at = time.monotonic()
            self._node.suspect()
            return to_builtins(self._node.standing)
        text, generation = question.arguments.get("text"), self._stacks.node().generation
        if question.arguments.get("by") != self._me and isinstance(text, str) and self._stored_for != generation:
            self._stored_for = generation
            self._leave_until = time.monotonic() + self._timeout + _OTHERS_S
            self._stacks.store(f"hang, found by another node: {printable(text)[:_LONGEST_TEXT]}", _TOLD_S / 2)
        return {}

    def _run(self) -> None:
        while not self._closed.wait(self._pause):
            try:
                self._turn()
            except (RdzvError, TimeoutError) as error:
                logger.debug("the nodes could not be asked whether they hang: %s", error)
            except Exception:  # the next turn may do better
                logger.exception("error in the watch for hangs")

    def _turn(self) -> None:
        node = self._stacks.node()
        if node.generation != self._generation:
            self._generation, self._judge, self._ask_at = node.generation, Judge(self._timeout, node.nodes), 0.0
            self._leave_until = 0.0
            if node.nodes > 1 and self._questions is None:
                self._say_once(
                    "--hang-timeout: nodes of this backend cannot ask each other for their progress: hangs are found "
                    "only in jobs of one node"
                )
        self._node.look(node)
        if node.works and self._is_my_turn(self._node.standing.node_rank):
            self._node.suspect()
            verdict = self._ask(node)
            longest = self._timeout / 8
            self._ask_at = time.monotonic() + min(max(verdict.in_s, self._pause), max(longest, self._pause))
            if verdict.hangs:
                self._conclude(node)

    def _is_my_turn(self, rank: int) -> bool:
        now, still = time.monotonic(), self._node.longest_s
        first = self._timeout * SUSPECTED + min(rank, _PATIENT_RANKS) * self._pause
        if still < first or now < max(self._ask_at, self._leave_until):
            return False
        asks_already = now - self._asked_at < self._timeout / 8 + _OTHERS_S / 2
        return not asks_already or rank == 0 or still >= self._timeout + _OTHERS_S

    def _ask(self, node: NodeSnapshot) -> Verdict:
        answers: Sequence[RpcResponse]
        if node.nodes == 1:
            answers = [RpcResponse(node.node_rank, node.host, node.agent, to_builtins(self._node.standing))]
        elif self._questions is None:
            answers = ()
        else:
            answers = self._questions.ask(STANDSTILL, {"by": self._me}, _ANSWER_S)
        verdict = self._judge.judge(answers, time.monotonic())
        if verdict.unknown:
            self._say_once(f"--hang-timeout: cannot tell whether the job hangs: {verdict.unknown}")
        return verdict

    def _conclude(self, node: NodeSnapshot) -> None:
        """The job seems to hang: ask where everybody is. If nobody has made progress by then, it does hang."""
        unread: list[Silent] = []
        if self._questions is None or node.nodes == 1:
            found = self._stacks.gather(node, _STACKS_S, children=True)
        else:
            found, unread = read(self._questions.ask(STACKS, {"within": _STACKS_S - 2, "children": True}, _STACKS_S))
        self._node.look(node)
        verdict = self._ask(node)
        if not found and not verdict.silent:  # nothing could be read in time
            return
        if not verdict.hangs or self._stacks.node() != node or time.monotonic() < self._leave_until:
            return
        failure = find_outlier(found, verdict.silent, unread, verdict.loops, self._timeout)
        if self._stored_for != node.generation:
            self._stored_for = node.generation
            self._stacks.store_reports(found, unread, "the job hangs")
        self._leave_until = time.monotonic() + self._timeout + _OTHERS_S
        if self._questions is not None and node.nodes > 1:
            try:
                self._questions.ask(HANG, {"by": self._me, "text": failure.cause[:_LONGEST_TEXT]}, _TOLD_S)
            except (RdzvError, TimeoutError) as error:  # the rendezvous tells of the failure itself
                logger.debug("the others could not be told of the hang: %s", error)
        self._on_hang(node.generation, failure)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)
