"""The failures of a generation of workers: the others are told, the first over all nodes is found, and what it means.

A restart does not help against the same failure, at the same place, without progress in between. Each failed round
leaves a note (``FailureRecord``). All nodes read the same notes, in the order of the rounds, so all of them come to
the same conclusion, whichever node the failure was on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from rdzv_launcher.run.agent.events import CauseFound, Event, RestartAllowed, RestartRefused, WorkerEnded
from rdzv_launcher.run.workers.failures import describe, describe_exit, read_traceback
from rdzv_launcher.run.workers.worker_group import WorkerGroup
from rdzv_plugins.errors import CrashLoop, NodeLost, is_signal
from rdzv_plugins.interfaces import Failure, RendezvousHandler
from rdzv_plugins.plain_text import printable
from rdzv_plugins.runtime import Runtime

if TYPE_CHECKING:
    from rdzv_launcher.run.agent.node_workers import NodeWorkers
    from rdzv_plugins.runtime import OwnThread

logger = logging.getLogger(__name__)


Counts = Literal["code", "any", "off"]
"""Which failures end the job: those in the program's text, all, or none."""

TIMES = 3
"""This many failures in a row are a loop."""
PROGRESS_S = 600.0
"""Workers that ran for longer have made progress, as far as anybody can tell: they may have saved a checkpoint."""
_AT_ONCE = 2
"""This many restarts without progress happen without a delay."""
_LONGEST_DELAY_S = 60.0
_LONGEST_TEXT = 500


class FailureRecord(Struct, frozen=True):
    """One failed round, as noted for all nodes."""

    what: str
    """The first failure over all nodes, in words that are the same when it happens again."""
    ran: float
    """Seconds from the start of the workers to their end."""
    of_the_text: bool = False
    """The failure is in the program's text: no restart fixes it."""

    @property
    def made_progress(self) -> bool:
        return self.ran >= PROGRESS_S


def spent(failure: Failure, ran: float) -> FailureRecord:
    """The note of a round whose first failure over all nodes was ``failure``, ``ran`` seconds after its start.

    A failure is identified by exception and last frame. The ranks of a job often fail alike, and which of them fails
    first is chance; the rank is included only where there is no traceback.
    """
    found = read_traceback(failure.stderr) if failure.exit_code > 0 else None
    if found is not None and found.place:
        return FailureRecord(f"{found.exception} at {found.place}", ran, found.is_of_the_text)
    if failure.hang:
        return FailureRecord(f"rank {failure.global_rank} stood still", ran)
    return FailureRecord(f"rank {failure.global_rank} ended with {describe_exit(failure.exit_code)}", ran)


def from_note(text: str) -> FailureRecord:
    """Read the note of any node. One that cannot be read counts as a failure unlike any other."""
    try:
        note = msgspec.json.decode(text, type=FailureRecord)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return FailureRecord("", PROGRESS_S)
    return msgspec.structs.replace(note, what=printable(note.what)[:_LONGEST_TEXT])


def in_a_row(history: Sequence[FailureRecord]) -> int:
    """How many times in a row the last failure has happened, without progress in between; at least 1."""
    last, times = history[-1], 1
    while times < len(history) and not history[-times].made_progress and history[-times - 1].what == last.what:
        times += 1
    return times


def is_loop(history: Sequence[FailureRecord], counts: Counts) -> bool:
    """Whether the last failure should end the job."""
    if counts == "off" or in_a_row(history) < TIMES:
        return False
    return counts == "any" or all(each.of_the_text for each in history[-TIMES:])


def delay_of(history: Sequence[FailureRecord], first: float) -> float:
    """Seconds to wait before the restart after the last failure, whatever the failures were.

    There is no delay before the first two restarts without progress; then ``first``, twice that, and so on, up to a
    minute. If ``first`` is 0, there is never a delay.
    """
    tries = 0
    while tries < len(history) and not history[-tries - 1].made_progress:
        tries += 1
    doubled = min(tries - _AT_ONCE - 1, 32)
    return min(first * 2**doubled, max(first, _LONGEST_DELAY_S)) if doubled >= 0 else 0.0


class RestartLimits(Struct, frozen=True):
    """What the user has set about restarts of the whole job."""

    job_restarts: int | None = None
    """The most restarts over all nodes; None: as many as the nodes have."""
    crash_loop: Counts = "code"
    restart_delay: float = 1.0
    """Seconds before the third restart without progress; each further one waits twice as long."""


_REPORT_TIMEOUT_S = 5.0


class RestartPolicy:
    """One agent's failures, of its newest generation, and whether its workers are restarted. For the main thread.

    That depends on a budget of the job, crash loops and delays. The handler keeps the notes of all failed rounds.
    """

    def __init__(
        self,
        handler: RendezvousHandler,
        workers: NodeWorkers,
        limits: RestartLimits,
        hang_timeout: float,
        runtime: Runtime,
    ) -> None:
        """A hang is only found once the job has stood still for ``hang_timeout`` seconds."""
        self._handler, self._workers = handler, workers
        self._limits, self._hang_timeout = limits, hang_timeout
        self._notes: list[FailureRecord] = []
        """This agent's own: for a handler that keeps none (a plug-in's own), or that cannot be asked now."""
        self._runtime, self._host = runtime, runtime.gethostname()
        self._group: WorkerGroup | None = None
        self.ended: dict[int, Failure] = {}
        """The workers that failed without being told to stop, by local rank, in the order of their ends."""
        self._hang: Failure | None = None
        """The worker that was different when the generation hung."""
        self._report: OwnThread | None = None
        self._started_at = 0.0

    def forget(self) -> None:
        """A new generation is about to be started: what is known about the last one no longer matters."""
        self.ended, self._report, self._hang = {}, None, None

    def started(self, group: WorkerGroup, now: float) -> None:
        """The workers of ``group``, which has their pids, are running from ``now`` (monotonic, in seconds) on."""
        self._group, self._started_at = group, now

    def note(self, event: Event) -> None:
        """Record something that happened while workers ran that were not told to stop."""
        if not isinstance(event, WorkerEnded) or event.exit_code == 0 or self._group is None:
            return
        if event.generation == self._group.generation:
            self.ended[event.local_rank] = self._group.failure(event.local_rank, event.exit_code, host=self._host)

    def tell(self, local_rank: int, exit_code: int) -> None:
        """Tell the others that this worker has failed, the first one here. Does not wait for anybody."""
        self._tell(self._here(local_rank, exit_code))

    def tell_hang(self, failure: Failure) -> None:
        """Tell the others that the job hangs. Does not wait for anybody."""
        self._hang = failure
        self._tell(failure)

    def _tell(self, failure: Failure) -> None:
        """Runs on a thread of its own, because it uses the network and the workers must be stopped now."""
        logger.error("%s", describe(failure))

        def tell() -> None:
            try:
                self._handler.note_failure(failure)
            except Exception as error:  # the endpoint may be gone with the node that failed: then this is our own view
                logger.debug("could not record the failure: %s", error)

        self._report = self._runtime.Thread(target=tell, name="rdzv-report-failure")
        self._report.start()

    def wait_told(self) -> None:
        """Wait until the others have been told: it is about the round of these workers, not the next one."""
        if self._report is not None:
            self._report.join(_REPORT_TIMEOUT_S)

    def find_cause(self, local_rank: int, exit_code: int) -> CauseFound:
        """Find the first failure over all nodes. Asks the others; raises ``NodeLost`` if the cause is a lost node."""
        if lost := self._handler.lost_peers():
            raise NodeLost(
                f"run {self._handler.get_run_id()!r}: {'; '.join(lost)}. The workers here failed because of that",
                remedy="Check the output of that node. With --max-restarts=N the others wait for a replacement.",
            )
        first = self._first(local_rank, exit_code)
        return CauseFound(first, describe(first))

    def count_restart(self, local_rank: int, exit_code: int) -> RestartAllowed | RestartRefused:
        """Whether the workers may be restarted, as far as the job is concerned. Asks the others."""
        first, ran = self._first(local_rank, exit_code), self._runtime.monotonic() - self._started_at
        if first.hang:  # nobody made progress in that time
            ran = max(0.0, ran - self._hang_timeout)
        return self.decide(first, ran)

    def decide(self, failure: Failure, ran: float) -> RestartAllowed | RestartRefused:
        """Decide what follows a round's first failure over all nodes, ``ran`` seconds after its start. May ask others.

        All that others notice is that the round is counted. Raises whatever ends the wait for them (a signal).
        """
        limits, history = self._limits, self._count(spent(failure, ran))
        times = in_a_row(history)
        if is_loop(history, limits.crash_loop):
            why = (
                f"This is a crash loop: {times} times in a row {history[-1].what}, without progress in between. "
                f"{CrashLoop.remedy_text}"
            )
            return RestartRefused(failure, describe(failure), why, CrashLoop.exit_code)
        if limits.job_restarts is not None and len(history) > limits.job_restarts:
            why = f"The job has used up its restarts: --rdzv-conf job_restarts={limits.job_restarts}, over all nodes."
            return RestartRefused(failure, describe(failure), why)
        if times == TIMES and limits.crash_loop != "off":
            logger.warning(
                "%d times in a row %s, without progress in between: --rdzv-conf crash_loop=any would end the job now",
                times,
                history[-1].what,
            )
        return RestartAllowed(delay_of(history, limits.restart_delay))

    def _count(self, latest: FailureRecord) -> list[FailureRecord]:
        """The failed rounds, in order; this one is the last."""
        self._notes.append(latest)
        try:
            notes = self._handler.count_restart(msgspec.json.encode(latest).decode())
        except Exception as error:  # the service may have gone with the node that failed
            if is_signal(error):
                raise
            logger.warning("cannot count the job's restarts now, only those of this node: %s", error)
            return self._notes
        return [from_note(note) for note in notes] if notes else self._notes

    def _here(self, local_rank: int, exit_code: int) -> Failure:
        assert self._group is not None
        if self._hang is not None:
            return self._hang
        stderr, cause = self._workers.tail(local_rank), self._workers.cause(local_rank, exit_code)
        return self._group.failure(local_rank, exit_code, host=self._host, stderr=stderr, cause=cause)

    def _first(self, local_rank: int, exit_code: int) -> Failure:
        """The first failure over all nodes; this node's own if the others cannot be asked."""
        first = self._here(local_rank, exit_code)
        try:
            self.wait_told()
            if self._report is None:
                self._handler.note_failure(first)
            first = self._handler.first_failure() or first
        except Exception as error:  # the store may have gone with the failed node
            if is_signal(error):
                raise
            logger.debug("could not ask for the first failure: %s", error)
        return first
