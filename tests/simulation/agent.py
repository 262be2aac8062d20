"""A whole agent in simulated time: the real loop, decisions, signals, fence and workers' side, on simulated workers.

It is put together as ``run/launch.py`` does it. What has no part in what an agent decides is left out: output, logs,
stacks, metrics, and the search for hangs (``Agent.hang`` is its verdict).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec import Struct

from rdzv_launcher.run.agent import events, steps
from rdzv_launcher.run.agent.events import Event
from rdzv_launcher.run.agent.fence import Fence
from rdzv_launcher.run.agent.loop import AgentLoop, AgentObserver, Inbox, Settings
from rdzv_launcher.run.agent.node_workers import NodeWorkers
from rdzv_launcher.run.agent.restart_policy import Counts, RestartLimits
from rdzv_launcher.run.agent.state_machine import AgentStateMachine, Limits
from rdzv_launcher.run.agent.steps import ExitOutcomes
from rdzv_launcher.run.agent.stopping_signals import Interrupted, StoppingSignals
from rdzv_launcher.run.supervisor.messages import Start
from rdzv_launcher.run.supervisor.supervisor import Supervisor
from rdzv_launcher.run.workers.failures import OomKills
from rdzv_launcher.run.workers.worker_group import WorkerGroup
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.interfaces import Failure, Request
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.rendezvous import Rendezvous
from rdzv_plugins.runtime import Signals
from rdzv_plugins.shared_numbers import NEVER, PAUSE_AT
from simulation.machines import Machines
from simulation.runtime import SimulatedRuntime
from simulation.workers import Does, Machine, Worker

_HOOKS, _REQUEST = PluginHost([]), Request("simulated", "job", "", 1, 1, 1)

Plan = Callable[[WorkerGroup, int], Does]
"""What a worker of a group does, by its local rank. Called at each start."""


class Options(Struct, frozen=True):
    """The flags of one agent, by their names."""

    workers: int = 1
    max_restarts: int = 0
    shutdown_timeout: float = 30.0
    monitor_interval: float = 0.1
    exit_barrier_timeout: float = 300.0
    leave_background: bool = False
    preempt_grace: float = 0.0
    preempt_signals: frozenset[Signals] = frozenset()
    job_restarts: int | None = None
    crash_loop: Counts = "code"
    restart_delay: float = 0.0
    stuck_timeout: float = 0.0
    identical: bool = False


class Page(list[int]):
    """A ``RoundPage``."""

    environment: Mapping[str, str] = {}

    def __init__(self) -> None:
        super().__init__([0] * 8)
        self[PAUSE_AT] = NEVER


class Unmarked:
    """A ``ProcessTag``: the agent itself has started nothing else."""

    def spare(self, pid: int) -> None: ...

    def spare_sessions(self, sessions: Iterable[int]) -> None: ...

    def signal(self, number: int) -> list[int]:
        return []


class Quiet:
    """Stands in for output, monitor and stacks."""

    def opened(self) -> None: ...

    def started(self, pids: Mapping[int, int]) -> None: ...

    def ended(self, local_rank: int, exit_code: int, *, stopped: bool) -> None: ...

    def end(self) -> None: ...

    def close(self) -> None: ...

    def store(self, why: str, lead: float) -> None: ...

    def tail(self, local_rank: int) -> tuple[str, ...]:
        return ()

    def error_file(self, local_rank: int) -> str:
        return ""


class Heard(AgentObserver):
    """What an agent has done, in order: (time, what)."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def heard(self, event: Event, group: WorkerGroup | None) -> None:
        self._agent.note("hears", event)
        if isinstance(event, events.RestartAllowed):
            self._agent.counted.append(self._agent.groups[-1].generation)

    def decided(self, event: Event, decisions: AgentStateMachine) -> None:
        self._agent.on_stage()

    def takes(self, step: steps.Step, group: WorkerGroup | None) -> None:
        self._agent.note("takes", step)
        if isinstance(step, steps.StartWorkers):
            self._agent.on_start(step.generation)

    def started(self, group: WorkerGroup) -> None:
        self._agent.groups.append(group)


class Agent:
    """One agent, in a process of its own on a host of its own. Facts about it are attributes, once it has ended."""

    def __init__(
        self,
        machines: Machines,
        name: str,
        handler: Callable[[SimulatedRuntime], Any],
        plan: Plan,
        options: Options | None = None,
        host: str = "",
    ) -> None:
        """``handler`` makes the ``RendezvousHandler``, on the agent's main thread."""
        self.name, self._make_handler, self._plan, self.options = name, handler, plan, options or Options()
        self._scheduler, self.processes = machines.scheduler, machines.processes
        self.process, self.entry, self.runtime = machines.boot(name, host)
        self.page = Page()
        self.machine = Machine(machines.processes, machines.kernel, self.page, name)
        self.exit_code: int | None = None
        self.end: steps.End | None = None
        self.groups: list[WorkerGroup] = []
        """The workers that it has started, generation after generation."""
        self.story: list[tuple[float, str, Any]] = []
        self.counted: list[int] = []
        """The generations whose end has used a restart."""
        self.inbox: Inbox = self.runtime.SimpleQueue()
        self.handler: Any = None
        self.on_start: Callable[[int], object] = lambda generation: None
        """Workers of a generation are about to be started."""
        self.on_stage: Callable[[], object] = lambda: None
        """It has decided what to do about an event."""
        self.prepares_in = 0.0
        """How long it takes to make its handler."""
        self._loop: AgentLoop | None = None
        self._scheduler.spawn(self.process, "main", self._main)

    # What happens to it

    def signal(self, number: int) -> None:
        """Send it a signal, as from a terminal or a scheduler."""
        self.processes.signal(self.entry, number)

    def kill(self) -> None:
        self.signal(Signals.SIGKILL)

    def freeze(self) -> None:
        self.signal(Signals.SIGSTOP)

    def thaw(self) -> None:
        self.signal(Signals.SIGCONT)

    def hang(self, failure: Failure) -> None:
        """Its watch finds that the job hangs."""
        self.inbox.put(events.Hung(self.groups[-1].generation, failure))

    # What is known about it

    @property
    def stage(self) -> str:
        """That of its decisions; empty before its first."""
        return "" if self._loop is None else self._loop.decisions.stage

    @property
    def restarts_used(self) -> int:
        return 0 if self._loop is None else self._loop.decisions.restarts_used

    @property
    def works(self) -> bool:
        """Whether its workers have all been started, and are to run."""
        return (
            self._loop is not None and self.stage == "working" and self._loop.decisions.generation == len(self.groups)
        )

    @property
    def over(self) -> bool:
        return not self.entry.lives

    @property
    def workers(self) -> list[Worker]:
        """Its workers that live."""
        return [each for each in self.machine.workers if each.entry.lives]

    @property
    def alive(self) -> list[int]:
        """The pids of whatever it has started that lives, wherever that is now."""
        names = (f"{self.name}.",)
        return [each.pid for each in self.processes.entries.values() if each.lives and each.command.startswith(names)]

    @property
    def has_stuck(self) -> bool:
        return any(each.state == "D" for each in self.processes.entries.values())

    def steps(self, kind: type) -> list[Any]:
        """The steps of a kind that it has taken, or what it has heard of a kind."""
        return [each for _, _, each in self.story if isinstance(each, kind)]

    def note(self, what: str, of: object) -> None:
        self.story.append((self._scheduler.now, what, of))

    # Its main thread

    def _main(self) -> None:
        code = 70
        try:
            code = self._run()
        except RdzvError as error:
            code = error.exit_code
        finally:
            if not self.process.killed:
                self.exit_code = code
                self._scheduler.at(self._scheduler.now, lambda: self.processes.end(self.entry, code * 256))

    def _run(self) -> int:
        options, runtime = self.options, self.runtime
        names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", *(number.name for number in options.preempt_signals))
        signals = StoppingSignals(",".join(names), self.inbox.put, runtime)
        make = self.machine.start(self.entry)

        def new_supervisor() -> Supervisor:
            return Supervisor(runtime=runtime, processes=self.processes, make=make)

        supervisor = new_supervisor()
        try:
            with signals.raising():
                runtime.sleep(self.prepares_in)
                self.handler = self._make_handler(runtime)
        except Interrupted as stop:
            supervisor.close()
            if stop.sigval in options.preempt_signals:
                error = ExitOutcomes(runtime.gethostname(), runtime.getpid()).preempted(None, None).error
                assert error is not None
                raise error from None
            return 128 + int(stop.sigval)
        except BaseException:
            supervisor.close()
            raise
        self._loop = self._assemble(signals, supervisor, new_supervisor)
        self.end = self._loop.run()
        self.note("ends", self.end)
        return self.end.exit_code

    def _assemble(
        self, signals: StoppingSignals, supervisor: Supervisor, new_supervisor: Callable[[], Supervisor]
    ) -> AgentLoop:
        options, runtime, handler, quiet = self.options, self.runtime, self.handler, Quiet()
        fence = Fence(
            handler.holding,
            self.page,  # type: ignore[arg-type]
            Unmarked(),  # type: ignore[arg-type]
            signal_below=lambda number: workers.signal_below(number),
            on_kill=lambda: workers.fenced(),
            runtime=runtime,
            processes=self.processes,
        )
        spec: Any = SimpleNamespace(run_id="job", leave_background=options.leave_background)
        parts: Any = quiet
        workers = NodeWorkers(
            spec,
            supervisor,
            new_supervisor,
            fence,
            parts,
            parts,
            parts,
            self.inbox,
            self._starts,
            runtime,
            processes=self.processes,
            kills=OomKills(Path("/nowhere")),
        )
        settings = Settings(
            limits=Limits(
                options.workers,
                options.max_restarts,
                options.shutdown_timeout,
                leave_background=options.leave_background,
                preempt_grace=options.preempt_grace,
                notice_signals=options.preempt_signals,
            ),
            monitor_interval=options.monitor_interval,
            exit_barrier_timeout=options.exit_barrier_timeout,
            stuck_timeout=options.stuck_timeout,
            retries=RestartLimits(options.job_restarts, options.crash_loop, options.restart_delay),
            identical=options.identical,
        )
        return AgentLoop(
            settings,
            Rendezvous(handler, _HOOKS, _REQUEST),
            workers,
            self.inbox,
            signals,
            runtime,
            give_notice=self.give,
            observers=[Heard(self)],
            processes=self.processes,
        )

    def _starts(self, group: WorkerGroup) -> Sequence[Start]:
        starts = []
        for each in group.workers:
            name = f"{self.name}.worker{each.local_rank}.{group.generation}"
            self.machine.plans[name] = self._plan(group, each.local_rank)
            starts.append(Start(each.local_rank, (name,), {}))
        return starts

    # Its notices: what the workers are told, and what comes of it

    go_on: bool | None = None
    """Whether the other nodes go on, once it has given notice; None: nobody says."""
    saves_in: float | None = None
    """In how many seconds the workers of all nodes have saved; None: never."""

    def give(self, reason: str, seconds: float) -> None:
        """Like ``give_notice`` of ``AgentLoop``."""
        scheduler, go_on, saves_in = self._scheduler, self.go_on, self.saves_in
        self.note("gives notice", reason)
        if go_on is not None:
            scheduler.at(scheduler.now + 0.1, lambda: self.inbox.put(events.NoticeAnswered(go_on, False)))
        if saves_in is not None:
            answer = events.NoticeAnswered(bool(go_on), True)
            scheduler.at(scheduler.now + saves_in, lambda: self.inbox.put(answer))
