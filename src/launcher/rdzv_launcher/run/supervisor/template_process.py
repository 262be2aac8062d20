"""The template as the supervisor sees it: an interpreter that has imported modules, and forks workers on request.

Whatever happens to it, no worker is lost: workers that it was asked for are started as fresh interpreters, and one
sentence says why.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from rdzv_launcher.run.supervisor.in_worker import HOOK, ROOTS
from rdzv_launcher.run.supervisor.messages import Channel, Gone, Loop, Message, Preload, Start
from rdzv_launcher.run.supervisor.worker_process import spawn, when_known
from rdzv_plugins.system.processes import ended_by

if TYPE_CHECKING:
    from rdzv_launcher.run.supervisor.supervisor_process import SupervisorProcess

_AT_START = ("PYTHON", "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_", "GLIBC_", "PYTORCH_")
"""Variables that are read when an interpreter or a library is loaded, and not again."""

_SWITCHES = frozenset({"-u", "-B", "-O", "-OO", "-b", "-bb", "-d", "-q", "-v"})
"""Flags of an interpreter with which a template works as well as without them."""


def program_of(command: tuple[str, ...]) -> tuple[str, ...]:
    """The interpreter and the program that it runs, without its arguments; empty if it is not that simple."""
    at = 1
    while at < len(command) and command[at] in _SWITCHES:
        at += 1
    end = at + 2 if command[at : at + 1] == ("-m",) else at + 1
    if len(command) < end or command[end - 1].startswith("-"):
        return ()
    return command[:end]


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The names of variables that matter when an interpreter starts, and differ between the two."""
    return sorted(
        name for name in one.keys() | other.keys() if name.startswith(_AT_START) and one.get(name) != other.get(name)
    )


_ANSWER_S = 10.0
"""Longer than a fork takes on a machine that swaps."""
_MOST_DEATHS = 3


class TemplateProcess:
    """One at a time. ``take`` says whether it has taken on a worker."""

    def __init__(self, loop: Loop, supervisor: SupervisorProcess, defaults: Collection[int]) -> None:
        self._loop, self._supervisor, self._defaults = loop, supervisor, defaults
        self._preload = Preload((), (), {})
        self._late = 0.0
        self._state = "off"  # probing, importing, ready
        self._pid = -1
        self._channel: Channel | None = None
        self._doing = ""
        self._deaths = 0
        # workers that it is to fork, once it has imported; and the process of each, if there is one
        self._asked: dict[tuple[int, int], tuple[Start, int]] = {}
        self._answer = 0.0
        self._said: set[str] = set()

    @property
    def pids(self) -> tuple[int, ...]:
        """The pid of its own process, if there is one."""
        return (self._pid,) if self._pid > 0 else ()

    def begin(self, preload: Preload) -> None:
        """Begin to import."""
        self._preload = preload
        if not program_of(preload.command):
            self._fail("only Python scripts and modules can be forked from preloaded modules")
            return
        self._begin()

    def _begin(self) -> None:
        self._late = time.monotonic() + self._preload.limit
        self._doing = "starting"
        interpreter = program_of(self._preload.command)[:1]
        # an interpreter that ignores PYTHONPATH would run the program at once
        if self._run((*interpreter, "-u", "-c", "raise SystemExit(1)"), "probe", -1, -1):
            self._state = "probing"

    def _run(self, command: tuple[str, ...], settings: str, fd: int, output: int) -> bool:
        theirs = self._preload.environment.get("PYTHONPATH", "")
        path = f"{HOOK}{os.pathsep}{theirs}" if theirs else HOOK

        def arrange() -> None:
            if output >= 0:
                os.set_inheritable(output, True)
                os.dup2(2, 1)  # what modules print is not a worker's output
            if fd >= 0:
                os.set_inheritable(fd, True)
            else:
                os.dup2(os.open(os.devnull, os.O_RDWR), 1)
                os.dup2(1, 2)

        environment = {**self._preload.environment, "PYTHONPATH": path, "RDZV_TEMPLATE": settings}
        try:
            self._pid, report = spawn(command, environment, self._defaults, arrange)
        except OSError as error:
            self._fail(f"no process could be started: {error.strerror}")
            return False

        def known(failure: tuple[str, int] | None) -> None:
            if failure is not None:
                self._pid = -1
                self._fail(f"{command[0]} could not be started: {os.strerror(failure[1])}")

        when_known(self._loop, report, known)
        return True

    def _import(self) -> None:
        self._channel, theirs = Channel.pair()
        try:
            output = os.dup(1)
        except OSError:  # closed
            output = -1
        settings = f"{theirs.fileno()}:{output}:{ROOTS}"
        if self._run(self._preload.command, settings, theirs.fileno(), output):
            self._state = "importing"
            self._loop.watch(self._channel.fileno(), self.hear)
            program = program_of(self._preload.command)
            path = os.getcwd() if "-m" in program[1:] else os.path.dirname(os.path.realpath(program[-1]))
            self._channel.send(("import", os.getpid(), self._preload.modules, len(program), path))
        theirs.close()
        if output >= 0:
            os.close(output)

    def take(self, asked: Start) -> bool:
        """True if it forks this worker, now or after importing; False if a fresh interpreter has to be started."""
        if self._state == "off" or not self._suits(asked):
            return False
        self._asked[asked.number, asked.local_rank] = (asked, -1)
        if self._state == "ready":
            self._ask(asked)
        return True

    def _suits(self, asked: Start) -> bool:
        if program_of(asked.command) != program_of(self._preload.command):
            self._say("the workers run a different program from the one that was preloaded for")
            return False
        names = differing(self._preload.environment, asked.environment)
        if names:
            self._say(f"worker {asked.local_rank} has different values of {', '.join(names)} in its environment")
        return not names

    def _ask(self, asked: Start) -> None:
        assert self._channel is not None
        try:
            taken = self._channel.send(("fork", *asked))
        except (Gone, OSError):
            taken = False
        if taken:
            self._answer = time.monotonic() + _ANSWER_S
        else:
            del self._asked[asked.number, asked.local_rank]
            self._supervisor.start_fresh(asked)

    def hear(self) -> None:
        """Take what it has said."""
        try:
            while self._channel is not None and (message := self._channel.receive()) is not None:
                self._answer = time.monotonic() + _ANSWER_S
                self._take(message)
        except Gone:  # the kernel reports its end, too
            if self._channel is not None:
                self._loop.forget(self._channel.fileno())

    def _take(self, message: Message) -> None:
        match message:
            case ("importing", module):
                self._doing = f"importing {module}"
            case ("failed", reason):
                self._fail(reason)
            case ("ready", memory, seconds):
                self._state, self._deaths = "ready", 0
                names = ", ".join(self._preload.modules)
                self._supervisor.tell("say", False, f"preloaded {names} in {seconds:.1f} s ({memory} KiB)")
                for asked, _ in [*self._asked.values()]:
                    self._ask(asked)
            case ("forked", number, local_rank, pid) if (number, local_rank) in self._asked:
                self._asked[number, local_rank] = (self._asked[number, local_rank][0], pid)
                self._supervisor.forked(number, local_rank, pid)
            case ("forked", _, _, pid):
                self._supervisor.drop(pid)
            case ("runs", number, local_rank, pid):
                if self._asked.pop((number, local_rank), None) is not None:
                    self._supervisor.started(pid)
            case ("not_arranged", number, local_rank, pid, what, error):
                if self._asked.pop((number, local_rank), None) is not None:
                    if pid > 0:
                        self._supervisor.drop(pid)
                    self._supervisor.not_started(number, local_rank, what, error)
            case _:
                raise AssertionError(f"the template says {message!r}, which nobody understands")

    def drop_asked(self) -> None:
        """Whatever was to be started is no longer wanted."""
        self.hear()
        begun = self._asked and self._state == "ready"
        for _, pid in self._asked.values():
            if pid > 0:
                self._supervisor.drop(pid)
        self._asked.clear()
        if begun:  # it may be about to fork them
            self._end()
            self._begin()

    def pause(self) -> float:
        """Seconds until ``look`` has to be called; negative: never."""
        due = self._late if self._state in ("probing", "importing") else self._answer if self._asked else None
        return -1 if due is None else max(0.0, due - time.monotonic()) + 0.001

    def look(self) -> None:
        """Give up a template that takes too long."""
        now = time.monotonic()
        if self._state in ("probing", "importing") and now >= self._late:
            self._fail(f"it was still {self._doing} after {self._preload.limit:g} s")
        elif self._state == "ready" and self._asked and now >= self._answer:
            self._replace("it does not answer")

    def ended(self, pid: int, status: int) -> None:
        """A child of the supervisor has ended, which may be this template."""
        if pid != self._pid:
            return
        self._pid = -1
        code = os.waitstatus_to_exitcode(status)
        how = ended_by(code)
        if self._state == "probing":
            if code == 0:
                self._import()
            else:
                self._fail(f"{self._preload.command[0]} ignores a sitecustomize on PYTHONPATH")
            return
        self.hear()
        if self._state == "importing":
            self._fail(f"it {how} while {self._doing}")
        elif self._state == "ready":
            self._replace(f"the process with the preloaded modules {how}")

    def _replace(self, reason: str) -> None:
        self._deaths += 1
        again = self._deaths < _MOST_DEATHS
        self._fail(reason)
        if again:
            self._begin()

    def _fail(self, reason: str) -> None:
        """There is no template: workers that it was asked for are started without it."""
        if self._state in ("importing", "ready"):
            self._state = "failing"
            self.hear()
        self._end()
        lost, self._asked = [*self._asked.values()], {}
        self._say(reason)
        for _, pid in lost:
            if pid > 0:
                self._supervisor.drop(pid)
        for asked, _ in lost:
            self._supervisor.start_fresh(asked)

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            names = ", ".join(self._preload.modules)
            text = f"workers start as fresh interpreters, without the preloaded {names}: {reason}"
            self._supervisor.tell("say", True, text)

    def _end(self) -> None:
        """End it, and what it is just forking: a worker that is ready has already said so, and lives on."""
        self._state = "off"
        if self._channel is not None:
            self._loop.forget(self._channel.fileno())
            self._channel.close()
            self._channel = None
        if self._pid > 0:
            for end in (os.killpg, os.kill):  # it may not lead a group yet
                try:
                    end(self._pid, signal.SIGKILL)
                    break
                except OSError:
                    pass
            self._pid = -1
