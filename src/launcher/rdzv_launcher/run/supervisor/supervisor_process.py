"""The supervisor: the parent of an agent's workers, and of what they leave behind. It ends all of it when the agent
ends.

A process with one thread. It never waits for anybody: neither for the agent, whose news it keeps until they are taken,
nor for a program that is slow to start, nor for a template.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rdzv_launcher.run.run_directory import remove
from rdzv_launcher.run.supervisor.descendants import Process, ProcessTag, descendants, kill, send
from rdzv_launcher.run.supervisor.in_worker import ROOTS, hooked
from rdzv_launcher.run.supervisor.messages import (
    NAME,
    Channel,
    Gone,
    Inherited,
    Loop,
    Message,
    OwnedResources,
    Preload,
    Start,
)
from rdzv_launcher.run.supervisor.template_process import TemplateProcess
from rdzv_launcher.run.supervisor.worker_process import (
    RESTORED,
    close_all_but,
    let_go_of_handlers,
    redirect,
    run_function,
    spawn,
    when_known,
)
from rdzv_plugins.clock import now_ns
from rdzv_plugins.shared_numbers import BEAT, NEVER, PAUSE_AT, PAUSED, RUNNING, STATE, STILL, read_round
from rdzv_plugins.system import prctl

_PAGE_S = 0.25
"""How often the page is read: the clock of a wait stands still while a machine sleeps, the page's does not."""
_LEAST_S = 0.01
_QUICK_LOOKS = 2
"""How many times the workers are paused in quick succession during one standstill, which may last for hours: the second
look finds workers that were just being started.
"""


class FrozenAgentWatchdog:
    """Pauses the workers of an agent that stands still, once their round is not known to hold. One per supervisor.

    A page that the agent writes says until when the round is known to hold, and when the agent last looked. When the
    agent resumes, it finds out what should become of the workers, and continues or kills them.

    ``read`` returns the numbers of the agent's ``RoundPage``; None: there is none. ``stop`` pauses the workers and all
    that they have started, and returns the paused processes.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[int]] | None,
        stop: Callable[[], Collection[Process]],
        send: Callable[[Process, int], bool] = send,
        now_ns: Callable[[], int] = now_ns,
    ) -> None:
        self._read, self._stop, self._send, self._now_ns = read, stop, send, now_ns
        self._looks = (0, 0)  # when the standstill began, and how often workers were paused in it

    def pause(self) -> float:
        """Seconds until ``look`` has to be called; negative: not until the agent has said something."""
        if self._read is None:
            return -1
        page = self._read()
        if page[STATE] != RUNNING or page[STILL] == NEVER:
            return -1
        if page[BEAT] == self._looks[0] and self._looks[1] >= _QUICK_LOOKS:
            return _PAGE_S
        due = max(page[PAUSE_AT], page[BEAT] + page[STILL]) - self._now_ns()
        return max(_LEAST_S, min(due / 1e9, _PAGE_S))

    def look(self) -> None:
        """Pause the workers if the agent stands still, and its session may have ended."""
        if self._read is None or not self._stands_still(self._read()):
            return
        since, looks = self._read()[BEAT], self._looks
        self._looks = since, looks[1] + 1 if looks[0] == since else 1
        paused = self._stop()
        # the agent has resumed meanwhile: it pauses them itself, unless it has found that they may run
        page = self._read()
        if not self._stands_still(page) and page[STATE] != PAUSED:
            for process in paused:
                self._send(process, signal.SIGCONT)

    def _stands_still(self, page: Sequence[int]) -> bool:
        now = self._now_ns()
        return page[STATE] == RUNNING and now >= page[PAUSE_AT] and now - page[BEAT] >= page[STILL]


_LOOK_S = 0.05
_QUIET_LOOKS = 5
"""How many looks must find nothing: a process that is just starting shows its environment a moment later."""
_LONGEST_PAUSE_S = 2.0
_PATIENCE_S = 600.0
"""A process that is stuck in the kernel may never end."""


def clear(owned: OwnedResources) -> None:
    """End everything that carries the agent's mark, until nothing is left, and remove its temporary files."""
    if owned.mark:
        marked = ProcessTag(owned.mark)
        quiet, pause, deadline = 0, _LOOK_S, time.monotonic() + _PATIENCE_S
        while quiet < _QUIET_LOOKS and time.monotonic() < deadline:
            if marked.signal(signal.SIGKILL):
                quiet, pause = 0, min(2 * pause, _LONGEST_PAUSE_S)
            else:
                quiet, pause = quiet + 1, _LOOK_S
            time.sleep(pause)
    if owned.directory:
        remove(owned.directory)


BOOT = (
    "import sys; sys.path[:] = filter(None, sys.path); import os; sys.path += sys.argv[1].split(os.pathsep); "
    "from rdzv_launcher.run.supervisor.supervisor_process import main; main()"
)
"""The program of a supervisor that cannot be forked. Its arguments: ``ROOTS``, the descriptor of the channel, the
agent's pid, the descriptors that workers have, the fields of ``OwnedResources``, and the signals that the agent
ignores.
"""

DEAF_TO = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are the agent's business, however they arrive."""
_AGAIN_S = 0.02
_LONGEST_S = 1.0


@dataclass
class SupervisedWorker:
    """A worker that has been forked. ``started`` once its program is known to run."""

    number: int
    local_rank: int
    pid: int
    pidfd: int = -1
    started: bool = False
    status: int | None = None


@dataclass
class Killing:
    """A request of the agent to end everything, until two searches in a row find nothing."""

    request: int
    deadline: float
    daemons: bool
    """Also what has left the sessions of the workers."""
    quiet: int = 0


class SupervisorProcess:
    """The process. ``ignored``: the signals that the agent ignored at its start; its workers ignore them, too."""

    def __init__(
        self, channel: Channel, agent: int, ignored: Collection[int], inherited: Inherited, owned: OwnedResources
    ) -> None:
        self._channel, self._agent = channel, agent
        self._inherited, self._owned = inherited, owned
        self._frozen = FrozenAgentWatchdog(
            (lambda: read_round(owned.page)) if owned.page >= 0 else None,
            lambda: self._on_signal_below(signal.SIGSTOP),
        )
        self._name = prctl.get_name()
        self._defaults = (RESTORED | {*DEAF_TO}) - {*ignored}
        self._loop = Loop()
        self._out: deque[Message] = deque()
        self._workers: dict[int, SupervisedWorker] = {}
        self._sessions: set[int] = set()
        self._failed: set[int] = set()
        self._killing: Killing | None = None
        self._template = TemplateProcess(self._loop, self, self._defaults)
        self._running = True
        self._dismissed = self._leaves = False

    def run(self) -> None:
        """Run until the agent has ended, or has said that it needs none; then all below this process is ended."""
        for number in DEAF_TO:
            signal.signal(number, signal.SIG_IGN)
        prctl.adopt_orphans()
        # if it is stopped when the agent ends, there is nobody else to continue it
        prctl.die_with_parent(self._agent, signal.SIGCONT)
        prctl.set_name(NAME)
        self._loop.watch_children(self._reap)
        self._loop.watch(self._channel.fileno(), self._hear)
        try:
            # a process that the agent has forked may hold the other end of the channel open
            self._loop.watch(os.pidfd_open(self._agent), self._stop)
        except (AttributeError, OSError):  # an old kernel: the channel has to do
            pass
        if os.getppid() != self._agent:
            self._running = False
        try:
            while self._running:
                self._loop.turn(self._pause())
                self._template.look()
                self._frozen.look()
                self._kill_on()
        finally:  # whatever happens here
            self._end()
            if not self._dismissed:
                clear(self._owned)

    # what the others say

    def tell(self, *message: object) -> None:
        """Tell the agent; messages that it does not take yet are kept."""
        self._out.append(message)
        self._say()

    def _say(self) -> None:
        try:
            while self._out and self._channel.send(self._out[0]):
                self._out.popleft()
        except Gone:
            self._running = False
            return
        except OSError:  # short of memory
            pass
        self._loop.watch(self._channel.fileno(), self._hear, select.EPOLLIN | (select.EPOLLOUT if self._out else 0))

    def _hear(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                getattr(self, f"_on_{message[0]}")(*message[1:])
        except Gone:
            self._running = False
            return
        if self._out:
            self._say()

    def _stop(self) -> None:
        self._running = False

    # what the agent asks for; the methods are named after the messages

    def _on_close(self, leave: bool) -> None:
        self._running, self._dismissed, self._leaves = False, True, leave

    def _on_beat(self) -> None:
        self.tell("beat")

    def _on_preload(self, *preload: Any) -> None:
        self._template.begin(Preload(*preload))

    def _on_start(self, number: int, workers: list[tuple[int, tuple[str, ...], dict[str, str], str, str]]) -> None:
        self._sessions = {worker.pid for worker in self._workers.values()}
        for each in workers:
            asked = Start(*each, number)
            if number not in self._failed and not self._template.take(asked):
                self.start_fresh(asked)
                self.tell("beat")  # a fork of a large process takes its time

    def _on_signal(self, number: int) -> None:
        for worker in self._workers.values():
            if worker.status is None:
                try:
                    os.killpg(worker.pid, number)
                except OSError:  # it is a zombie, or not the leader of its group yet
                    pass

    def _on_signal_below(self, number: int) -> list[Process]:
        """Signal the workers at once, then everything that they have started; returns the processes reached."""
        self._on_signal(number)
        return [each for each in descendants([os.getpid()], self._template.pids) if send(each, number)]

    def _on_signal_left(self, request: int, number: int, daemons: bool) -> None:
        sent = [process.pid for process in self._below(daemons) if number == 0 or send(process, number)]
        self.tell("left", request, sent)

    def _below(self, daemons: bool) -> list[Process]:
        """What is left of this round's workers in their sessions; ``daemons``: all that any have started."""
        found = descendants([os.getpid()], self._template.pids)
        return [process for process in found if daemons or process.session in self._sessions]

    def _on_kill(self, request: int, limit: float, daemons: bool) -> None:
        for worker in self._workers.values():
            self._failed.add(worker.number)
        self._on_signal(signal.SIGKILL)
        self._template.drop_asked()
        self._killing = Killing(request, time.monotonic() + limit, daemons)

    # workers

    def start_fresh(self, asked: Start) -> None:
        """Start an interpreter, or whatever the command is."""
        if asked.number in self._failed:
            return
        try:
            pid, fd = spawn(
                asked.command,
                hooked(asked.environment),
                self._defaults,
                lambda: redirect(asked.stdout, asked.stderr),
                self._instead(asked),
            )
        except OSError as error:
            self.not_started(asked.number, asked.local_rank, "fork", error.errno or 0)
            return

        def known(failure: tuple[str, int] | None) -> None:
            if failure is None:
                self.started(pid)
            else:
                self._forget(pid)
                self.not_started(asked.number, asked.local_rank, *failure)

        when_known(self._loop, fd, known)
        self.forked(asked.number, asked.local_rank, pid)

    def _instead(self, asked: Start) -> Callable[[], None] | None:
        """The function to run in place of a command, if there is one."""
        function = self._inherited.function
        if function is None:
            return None
        kept = self._inherited.descriptors
        return lambda: run_function(lambda: function(asked.local_rank), asked.environment, kept, self._name)

    def forked(self, number: int, local_rank: int, pid: int) -> None:
        worker = self._workers[pid] = SupervisedWorker(number, local_rank, pid)
        self._sessions.add(pid)
        try:
            worker.pidfd = os.pidfd_open(pid)
        except (AttributeError, OSError):  # an old kernel: ends are reported in the order in which they are found
            return
        self._loop.watch(worker.pidfd, lambda: self._ended(worker))

    def started(self, pid: int) -> None:
        """The worker's program is running, or is about to."""
        worker = self._workers.get(pid)
        if worker is not None and not worker.started:
            worker.started = True
            self.tell("started", worker.number, worker.local_rank, pid)

    def not_started(self, number: int, local_rank: int, what: str, error: int) -> None:
        """The worker could not be started, so the others of the same start are of no use."""
        if number not in self._failed:
            self._failed.add(number)
            self.tell("not_started", number, local_rank, what, error)

    def drop(self, pid: int) -> None:
        """End the process, without reporting its end."""
        self._forget(pid)
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass

    def _ended(self, worker: SupervisedWorker) -> None:
        if worker.status is None:
            self._reap()
        if worker.status is None or self._workers.get(worker.pid) is not worker:
            return
        if not worker.started:
            self._template.hear()
            self.started(worker.pid)
        self._forget(worker.pid)
        self.tell("ended", worker.local_rank, os.waitstatus_to_exitcode(worker.status))

    def _forget(self, pid: int) -> None:
        worker = self._workers.pop(pid, None)
        if worker is not None and worker.pidfd >= 0:
            self._loop.forget(worker.pidfd)
            os.close(worker.pidfd)

    def _reap(self) -> bool:
        """Wait for all that have ended. False if there is no child left, so that nothing below this process lives."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            worker = self._workers.get(pid)
            if worker is not None:
                worker.status = status
                if worker.pidfd < 0:
                    self._ended(worker)
            else:
                self._template.ended(pid, status)

    # ends

    def _pause(self) -> float:
        if self._killing is not None:
            return _AGAIN_S
        return min((due for due in (self._template.pause(), self._frozen.pause()) if due >= 0), default=-1)

    def _kill_on(self) -> None:
        killing = self._killing
        if killing is None:
            return
        self._reap()
        left = self._below(killing.daemons)
        for process in left:
            send(process, signal.SIGKILL)
        killing.quiet = 0 if left else killing.quiet + 1
        if killing.quiet > 1 or time.monotonic() > killing.deadline:
            self._killing = None
            self.tell("left", killing.request, [process.pid for process in left])

    def _end(self) -> None:
        self._on_signal(signal.SIGKILL)
        if self._leaves:  # the kernel ends workers and template with this process, and nothing else
            return
        pause, deadline = _AGAIN_S, time.monotonic() + _PATIENCE_S
        while self._reap() and time.monotonic() < deadline:
            kill([os.getpid()])
            if not self._reap():
                break
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)


def start_supervisor(theirs: Channel, ignored: Iterable[int], inherited: Inherited, owned: OwnedResources) -> int:
    """Start a supervisor of this process at the other end of its channel; returns the pid. Raises ``OSError``."""
    prctl.adopt_orphans()
    ours = {number for number in signal.valid_signals() - RESTORED if signal.getsignal(number) is signal.SIG_IGN}
    agent, ignored = os.getpid(), sorted({*ours, *ignored})
    if inherited.function is not None or len(os.listdir("/proc/self/task")) == 1:
        pid = os.fork()
        if pid == 0:
            become_supervisor(theirs, agent, ignored, inherited, owned)
        return pid
    # a fork of a process with threads may find a lock that nobody will ever release
    import subprocess

    fd = theirs.fileno()
    kept, own = inherited.descriptors, owned
    told = [str(fd), str(agent), ",".join(map(str, kept)), str(own.page), own.mark, own.directory, *map(str, ignored)]
    open_there = [fd, *kept, *([own.page] if own.page >= 0 else [])]
    # this very program, by another name: a debugger that follows children, or a wrapper called python, would bring its
    # threads and connections into the supervisor; and no PYTHON* variable but that of where the interpreter is
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PYTHONHOME"] = f"{sys.base_prefix}{os.pathsep}{sys.base_exec_prefix}"
    process = subprocess.Popen(
        [NAME, "-s", "-S", "-c", BOOT, ROOTS, *told],
        executable="/proc/self/exe",
        env=environment,
        pass_fds=open_there,
    )
    process.returncode = 0  # it is waited for here, and not by subprocess
    return process.pid


def become_supervisor(
    channel: Channel, agent: int, ignored: Collection[int], inherited: Inherited, owned: OwnedResources
) -> None:
    """In a process that the agent has just forked: let go of everything of the agent's, and never return.

    Only what its workers are to inherit is kept.
    """
    code = 1
    try:
        gc.disable()  # it would finalise the agent's objects, whose descriptors are used for something else here
        gc.freeze()
        let_go_of_handlers()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        os.setsid()
        close_all_but({channel.fileno(), owned.page, *inherited.descriptors})
        SupervisorProcess(channel, agent, ignored, inherited, owned).run()
        code = 0
    except BaseException as error:
        os.write(2, f"rdzv: error in the worker supervisor: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def main() -> None:
    """The entry point of a supervisor that was started as a program."""
    _, _, fd, agent, kept, page, mark, directory, *ignored = sys.argv
    inherited = Inherited(tuple(int(number) for number in kept.split(",") if number))
    owned = OwnedResources(int(page), mark, directory)
    become_supervisor(Channel.of(int(fd)), int(agent), [int(number) for number in ignored], inherited, owned)
