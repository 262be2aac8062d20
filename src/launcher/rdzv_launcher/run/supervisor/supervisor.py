"""The supervisor as its agent sees it: the agent starts workers, signals them and hears about them through it.

The agent never waits for it without a limit, and asks it about once a second whether it still lives: one that stands
still is ended. Whatever happens to the supervisor, workers do not stay behind: the kernel ends them with it, and what
they have started is left to the agent, which is a subreaper, too.
"""

from __future__ import annotations

import errno
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from rdzv_launcher.run.supervisor import descendants
from rdzv_launcher.run.supervisor.descendants import Process, Processes
from rdzv_launcher.run.supervisor.messages import (
    Channel,
    Event,
    Gone,
    Inherited,
    Lost,
    Message,
    OwnedResources,
    Preload,
    Start,
    WorkerEnded,
)
from rdzv_launcher.run.supervisor.supervisor_process import start_supervisor
from rdzv_plugins.errors import LimitTooLow, SupervisorLost, WorkerNotStarted
from rdzv_plugins.runtime import POLLIN, POLLOUT, SYSTEM, Runtime, Signals
from rdzv_plugins.system.processes import ended_by

logger = logging.getLogger(__name__)


BEAT_S = 1.0
"""How long nothing may be heard before a question is asked."""
STOPPED_S = 4.0
"""How long a question may be unanswered before it is looked whether the supervisor has been stopped by a signal."""
SILENT_S = 10.0
"""How long it may be unanswered altogether: the supervisor never waits for anybody, so it needs no longer than the
kernel takes to let it run, even on a machine that swaps.
"""


class RunningTime:
    """A clock, in seconds, that stands still while this process does: it knows of no more than two beats at once.

    So it has to be read at least once in a beat, while somebody waits.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seen, self._ran = now(), 0.0

    def __call__(self) -> float:
        now = self._now()
        self._ran += min(max(0.0, now - self._seen), 2 * BEAT_S)
        self._seen = now
        return self._ran


_AGAIN_S = 0.01


class OrphanReaper:
    """While a supervisor lives, nothing below it can become the agent's child: all children seen are the agent's."""

    def __init__(self, supervisor: int, runtime: Runtime, processes: Processes) -> None:
        self._supervisor, self._runtime, self._processes = supervisor, runtime, processes
        self._own: set[tuple[int, str]] = set()
        self.look()

    def look(self) -> None:
        """Remember the agent's own children, if the supervisor lives."""
        found = self._processes.children(self._runtime.getpid())
        try:
            if self._runtime.waitid(os.P_PID, self._supervisor, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return  # what the supervisor left may be among them
        except ChildProcessError:
            return
        self._own = {(each.pid, each.started) for each in found}

    def kill(self, deadline: float) -> list[int]:
        """End what a supervisor left behind when it ended; returns the pids of processes that do not end.

        Processes in the agent's session are never touched, because what a supervisor leaves is never there. Nor are the
        agent's own children in sessions of their own, unless they were started since the last ``look``: those are ended
        with the rest.
        """
        quiet = 0
        while True:
            left, adopted = self.signal(Signals.SIGKILL), self._adopted()
            for each in adopted:
                wait_for(each.pid, self._runtime.monotonic() + _AGAIN_S, self._runtime)
            quiet = 0 if left or adopted else quiet + 1
            if quiet > 1 or self._runtime.monotonic() > deadline:
                return left

    def signal(self, number: int) -> list[int]:
        """Signal what a supervisor left behind when it ended, and return the pids of what lives; 0 only asks."""
        adopted = self._adopted()
        found = [each for each in adopted if each.lives] + self._processes.descendants([each.pid for each in adopted])
        return [each.pid for each in found if number == 0 or self._processes.send(each, number)]

    def _adopted(self) -> list[Process]:
        session = self._runtime.getsid(0)
        return [
            each
            for each in self._processes.children(self._runtime.getpid())
            if each.session != session and (each.pid, each.started) not in self._own
        ]


def wait_for(pid: int, deadline: float, runtime: Runtime) -> tuple[int] | None:
    """The status of a child; None if it does not end in time, or is not a child of this process."""
    while True:
        try:
            found, status = runtime.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if found:
            return (status,)
        if runtime.monotonic() > deadline:
            return None
        runtime.sleep(_AGAIN_S)


_ANSWER_S = 60.0
"""How long a start may take: on a machine that swaps, or with programs on a hanging file system."""
_SEND_S = 2.0
_HELP_S = 1.0
"""After this time the agent kills processes itself, alongside a supervisor that does not."""
_KILL_S = 5.0
LONGEST_KILL_S = _KILL_S + 5 * _SEND_S
"""The longest that ``kill_all`` takes, if the supervisor stands still and has to be ended, too."""


class Supervisor:
    """One process. The agent creates it as a fork before it has threads; afterwards, in a new interpreter.

    It has to be closed, however the agent ends. A lost supervisor is closed and replaced by another.

    ``start``, ``events`` and everything that waits for an answer are for one thread. ``signal`` may be called by any
    thread, and in a signal handler.
    """

    def __init__(
        self,
        preload: Preload | None = None,
        inherited: Inherited | None = None,
        ignored: Iterable[int] = (),
        owned: OwnedResources | None = None,
        runtime: Runtime = SYSTEM,
        processes: Processes = descendants,
        make: Callable[[Channel, Iterable[int], Inherited, OwnedResources], int] = start_supervisor,
    ) -> None:
        """Raises ``LimitTooLow`` if no process can be created.

        ``ignored``: the signals that workers ignore at first, in addition to those that this process ignores.
        ``make`` is like ``start_supervisor``.

        With a function, the supervisor is a fork even of an agent that has threads: a caller who wants forks wants
        exactly that.
        """
        self._events: deque[Event] = deque()
        self._answers: dict[int, list[int]] = {}
        self._started: dict[int, int] = {}
        self._failed: dict[int, tuple[str, int]] = {}
        self._number = self._generation = 0
        self._lost = self._closed = False
        self._import_s = 0.0 if preload is None else preload.limit
        self._runtime, self._processes = runtime, processes
        self._clock = RunningTime(runtime.monotonic)
        self._heard = self._clock()
        """Whatever is heard from the supervisor is a sign of life, and not only an answer."""
        self._asked: float | None = None
        """Since when a question for a sign of life has been unanswered; None: there is none."""
        self._taken = False
        """The supervisor's end of the channel has taken the question: it need not be asked again."""
        self._channel, theirs = Channel.pair(runtime.socketpair)
        try:
            self.pid = make(theirs, ignored, inherited or Inherited(), owned or OwnedResources())
        except OSError as error:
            raise LimitTooLow(
                f"the worker supervisor could not be started: {error.strerror}",
                remedy="Allow more processes (ulimit -u, pids of the container), or free memory.",
            ) from error
        finally:
            theirs.close()
        self._adopted = OrphanReaper(self.pid, runtime, processes)
        if preload is not None:
            command, environment = tuple(preload.command), dict(preload.environment)
            self._send("preload", tuple(preload.modules), command, environment, preload.limit)

    def fileno(self) -> int:
        """The descriptor for ``poll``: readable when there may be ``events``, also when the supervisor has ended."""
        return self._channel.fileno()

    def start(self, workers: Sequence[Start], generation: int = 0) -> dict[int, int]:
        """Start a round's workers; returns their pids by local rank. All of them are started, or none.

        Raises ``WorkerNotStarted`` for the first that cannot be started, or not in time; modules that are still being
        imported have their own limit. Raises ``SupervisorLost`` when the supervisor has ended, or had to be ended: then
        ``events`` say so, too. Workers that end meanwhile appear in ``events``, with this ``generation``.
        """
        self._adopted.look()
        self._number, self._generation = self._number + 1, generation
        self._started, self._failed = {}, {}
        plain = []
        for each in workers:
            files = [os.path.abspath(path) if path else "" for path in (each.stdout, each.stderr)]
            plain.append((each.local_rank, tuple(each.command), dict(each.environment), *files))
        try:
            self._send("start", self._number, plain)
            deadline = self._clock() + self._import_s + _ANSWER_S
            while len(self._started) < len(workers):
                if not self._wait(deadline):
                    raise _late(next(each for each in workers if each.local_rank not in self._started))
                for worker in workers:
                    if worker.local_rank in self._failed:
                        raise _not_started(worker, *self._failed[worker.local_rank])
        except BaseException:
            self.kill_all()
            raise
        return dict(self._started)

    def signal(self, number: int) -> None:
        """Send a signal to the process groups of live workers. Raises ``SupervisorLost``."""
        self._send("signal", int(number))

    def signal_below(self, number: int) -> None:
        """Send a signal to live workers, and to everything that workers of any round have started. Any thread.

        Does not wait: if the supervisor takes no message now, nothing is sent.
        """
        try:
            if not self._lost and not self._closed:
                self._channel.send(("signal_below", int(number)))
        except (Gone, OSError):
            pass

    def signal_left(self, number: int, *, daemons: bool = False, timeout: float = _SEND_S) -> list[int]:
        """Send a signal to everything in the sessions of this round's workers, and return the pids; 0 only asks.

        ``daemons``: to everything that workers of any round have started. If the supervisor has ended, that is what it
        has left behind.
        """
        if self._unanswered() > BEAT_S:
            timeout = 0.0
        try:
            left = self._ask("signal_left", int(number), daemons, timeout=timeout)
        except SupervisorLost:
            return self._adopted.signal(number)
        if left is None:  # it stands still, or the machine is slow: doing the same ourselves does no harm
            left = self._signal_below(number, daemons)
        return left

    def _signal_below(self, number: int, daemons: bool) -> list[int]:
        """What the supervisor does to what is below it, done by this process."""
        sessions = {*self._started.values()}
        below = [each for each in self._processes.descendants([self.pid]) if daemons or each.session in sessions]
        return [each.pid for each in below if number == 0 or self._processes.send(each, number)]

    def leftovers(self, *, daemons: bool = False, timeout: float = _SEND_S) -> list[int]:
        """The pids that ``signal_left`` would reach: workers, and whatever they have started."""
        return self.signal_left(0, daemons=daemons, timeout=timeout)

    def kill_all(self, timeout: float = _KILL_S, *, daemons: bool = True) -> list[int]:
        """End everything that was ever started, at once; returns the pids of what has not ended. Raises nothing.

        Without ``daemons``, what has left the sessions of this round's workers goes on, if the supervisor lives.
        A supervisor that does not do it is ended, too: then the next event is ``Lost``.
        """
        deadline = self._clock() + timeout + _SEND_S  # later than that of the supervisor
        try:
            left = self._ask("kill", timeout, daemons, timeout=min(_HELP_S, timeout))
            if left is not None:
                return left
            # the supervisor stands still, or the machine is slow: doing the same ourselves does no harm
            quiet = 0
            while quiet < 2 and self._clock() < deadline:
                self._runtime.sleep(_AGAIN_S)
                quiet = 0 if self._signal_below(Signals.SIGKILL, daemons) else quiet + 1
            limit = max(_AGAIN_S, deadline - _SEND_S - self._clock())
            left = self._ask("kill", limit, daemons, timeout=deadline - self._clock())
            if left is not None:
                return left
            self._lose(f"did not end the workers within {timeout:g} s, and was killed")
        except SupervisorLost:
            pass
        return self._adopted.kill(self._runtime.monotonic() + _SEND_S)

    def close(self, *, leave: bool = False) -> list[int]:
        """End everything that was started, and the supervisor; returns the pids of what has not ended. Raises nothing.

        ``leave``: what has left the sessions of this round's workers goes on.
        """
        if self._closed:
            return []
        left = self.kill_all(daemons=not leave)
        self._closed = True
        if not self._lost:
            try:
                self._channel.send(("close", leave))
            except (Gone, OSError):
                pass
            if not left and not wait_for(self.pid, self._runtime.monotonic() + _KILL_S, self._runtime):
                self._end_supervisor()
        self._channel.close()
        return left

    def events(self, timeout: float = 0.0) -> list[Event]:
        """What has happened since the last call; waits up to ``timeout`` seconds for something to happen."""
        deadline = self._runtime.monotonic() + timeout
        self._take()
        while not self._events and not self._lost and (left := deadline - self._runtime.monotonic()) > 0:
            self._poll(left)
            self._take()
        events = list(self._events)
        self._events.clear()
        return events

    # the channel

    def _send(self, *message: object) -> None:
        deadline = self._clock() + _SEND_S
        try:
            while not self._lost and not self._closed:
                if self._channel.send(message):
                    return
                if self._clock() > deadline:
                    raise SupervisorLost(f"the worker supervisor (pid {self.pid}) takes no messages")
                self._poll(_AGAIN_S, POLLOUT)
        except Gone:
            pass
        raise SupervisorLost("the worker supervisor has ended")

    def _ask(self, what: str, *rest: object, timeout: float) -> list[int] | None:
        """The answer; None if there is none in time. Raises ``SupervisorLost`` if the supervisor has ended."""
        self._number += 1
        request = self._number
        deadline = self._clock() + timeout
        try:
            self._send(what, request, *rest)
        except SupervisorLost:
            self._take()
            if self._lost:
                raise
            return None
        while request not in self._answers:
            if not self._wait(deadline):
                return None
        return self._answers.pop(request)

    def _wait(self, deadline: float) -> bool:
        """Take messages; wait for one if none has arrived yet. False after the deadline, by the time that this runs.

        Raises ``SupervisorLost`` if the supervisor has ended, or stands still and had to be ended.
        """
        if not self._take() and not self._lost:
            left = deadline - self._clock()
            if left <= 0:
                return False
            self._poll(left)
            self._take()
        if self._lost:
            raise SupervisorLost("the worker supervisor has ended")
        return True

    def _poll(self, timeout: float, events: int = POLLIN) -> None:
        poll = self._runtime.poll()
        poll.register(self._channel.fileno(), events)
        poll.poll(math.ceil(min(timeout, BEAT_S) * 1000))

    def _take(self) -> bool:
        """Take all messages that have arrived; True if there were any."""
        taken = False
        try:
            while not self._lost and not self._closed and (message := self._channel.receive()) is not None:
                taken = True
                self._heard, self._asked, self._taken = self._clock(), None, False
                self._hear(message)
            if not self._lost and not self._closed:
                self._beat()
        except Gone:
            self._lose()
        return taken

    def _unanswered(self) -> float:
        return 0.0 if self._asked is None else self._clock() - self._asked

    def _beat(self) -> None:
        """Ask the supervisor for a sign of life when it is time for that, and end one that has not answered."""
        if self._asked is None and self._clock() - self._heard >= BEAT_S:
            self._asked = self._clock()
        if self._asked is not None and not self._taken:
            try:
                self._taken = self._channel.send(("beat",))
            except OSError:  # short of memory
                pass
        unanswered = self._unanswered()
        if unanswered >= SILENT_S:
            self._lose(f"stood still for {unanswered:.0f} s, and was killed")
        elif unanswered >= STOPPED_S:
            found = self._processes.look(self.pid)
            if found is None or found.state != "T":
                return
            logger.warning("the worker supervisor (pid %d) was stopped by a signal: resuming it", self.pid)
            self._signal_supervisor(Signals.SIGCONT)

    def _hear(self, message: Message) -> None:
        match message:
            case ("started", number, local_rank, pid) if number == self._number:
                self._started[local_rank] = pid
            case ("not_started", number, local_rank, what, error) if number == self._number:
                self._failed[local_rank] = what, error
            case ("ended", local_rank, code):
                self._events.append(WorkerEnded(self._generation, local_rank, code))
            case ("left", request, pids):
                self._answers = {request: pids}  # earlier questions are no longer waited for
            case ("say", warning, text):
                logger.log(logging.WARNING if warning else logging.DEBUG, "%s", text)
            case ("beat",) | ("started" | "not_started", *_):
                pass  # it lives; or it speaks of an earlier start
            case _:
                raise AssertionError(f"the supervisor says {message!r}, which nobody understands")

    # the end of the supervisor

    def _lose(self, how: str = "") -> None:
        """The supervisor has ended, or is ended now because of ``how``. When this returns, so have its workers."""
        if self._lost:
            return
        self._lost = True
        code = self._end_supervisor()
        if code is None:  # it is stuck in the kernel, and its workers are still below it
            self._processes.kill([self.pid])
            how = how or "does not end"
        left = self._adopted.kill(self._runtime.monotonic() + _SEND_S)
        if code is not None and not how:
            how = ended_by(code)
        self._events.append(
            Lost(
                f"the worker supervisor (pid {self.pid}) {how}: the workers were ended with it"
                + (f"; still running: {left}" if left else "")
            )
        )

    def _end_supervisor(self) -> int | None:
        """End the supervisor; returns its exit code, or None if it does not end."""
        deadline = self._runtime.monotonic() + _SEND_S
        if (status := wait_for(self.pid, self._runtime.monotonic() + _AGAIN_S, self._runtime)) is None:
            self._signal_supervisor(Signals.SIGKILL)
            status = wait_for(self.pid, deadline, self._runtime)
        return None if status is None else os.waitstatus_to_exitcode(status[0])

    def _signal_supervisor(self, number: int) -> None:
        try:
            self._runtime.kill(self.pid, number)
        except OSError:  # it has ended
            pass


def _late(worker: Start) -> WorkerNotStarted:
    return WorkerNotStarted(
        f"the worker with local rank {worker.local_rank} could not be started: {worker.command[0]} was not "
        f"running after {_ANSWER_S:g} s",
        remedy="Check the file systems of the program and of --log-dir: one of them may hang.",
    )


def _not_started(worker: Start, what: str, number: int) -> WorkerNotStarted:
    """The error for a worker: ``what`` failed (fork, exec, stdout, stderr, value) with the errno ``number``."""
    program, why = worker.command[0], os.strerror(number)
    who = f"the worker with local rank {worker.local_rank} could not be started: "
    if what == "value":
        return WorkerNotStarted(
            f"{who}its arguments or its environment contain a NUL character, or a name with '='",
            remedy="Check the arguments of the script, and what plug-ins add to the environment.",
        )
    if what in ("stdout", "stderr") and number not in (errno.EMFILE, errno.ENFILE):
        return WorkerNotStarted(
            f"{who}cannot open {getattr(worker, what)}, the file for its {what} ({why})",
            remedy="Choose a writable directory with free space (--log-dir, --redirects).",
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return WorkerNotStarted(f"{who}{why}", remedy="Allow more open files: ulimit -n.")
    if what == "fork" or number in (errno.EAGAIN, errno.ENOMEM):
        return WorkerNotStarted(
            f"{who}the system allows no more processes ({why})",
            remedy="Allow more processes (ulimit -u, TasksMax= of a systemd unit, pids of the container), free memory, "
            "or start fewer workers: --nproc-per-node.",
        )
    if number == errno.E2BIG:
        size = sum(map(len, worker.command)) + sum(len(k) + len(v) + 2 for k, v in worker.environment.items())
        return WorkerNotStarted(
            f"{who}its arguments and its environment are too long for the system ({size} characters; {why})",
            remedy="One string may have 128 KiB, all together a quarter of the stack limit (ulimit -s). Put long "
            "values into a file.",
        )
    remedies = {
        errno.ENOENT: "Check the path, and PATH of the workers; for a script, also the interpreter after its #!.",
        errno.EACCES: "Make it executable: chmod +x. A directory cannot be run, and neither can a file on a file "
        "system mounted noexec.",
        errno.ENOEXEC: "A script needs a first line that names its interpreter, such as #!/bin/sh.",
    }
    return WorkerNotStarted(f"{who}{program}: {why}", remedy=remedies.get(number, ""))
