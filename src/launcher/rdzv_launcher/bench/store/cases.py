"""What ``rdzv bench store`` does to a server, and what it reads around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rdzv_launcher.bench.method.readings import forget_peak, listen_losses, peak_memory, resident_memory
from rdzv_launcher.bench.processes.load import clients
from rdzv_launcher.bench.store.servers import StoreProcess, StoreTarget

if TYPE_CHECKING:
    from rdzv_launcher.bench._load import Figures, Load

WORKLOADS = {
    "storm": "all connect at once, until each has the answer to its PING",
    "barrier": "each adds 1, the last sets the key that all others wait for",
    "mesh": "as gloo: each sets its blob, then for each of some peers: wait, wait, get",
    "one_key": "as NCCL: all wait for a key of 128 bytes and get it, one sets it",
    "multi_get": "each waits for 64 keys of 16 bytes, then gets them in one request",
    "hold": "connect, then stay idle",
    "many": "clients in several processes connect to as many servers, stay, and ask once each, all at the same time",
    "names": "a storm with reverse DNS as the system has it",
    "open": "nodes' sessions are opened, one after the other, by the client that nodes have",
    "ask": "each of these puts 64 bytes and lists that key, one request under way at a time",
}
SESSIONS = ("open", "ask")
"""The workloads in our own protocol, the only one that has tokens and TLS, and which only our server speaks."""
NAMES_LIMIT_S = 20.0
_NAMES_SOURCE = "127.0.0.9"  # not in any hosts file
_WINDOW = 256
_IDLE_S = 1.0


@dataclass(frozen=True)
class StoreCase:
    """A workload with a number of connections."""

    workload: str
    connections: int
    rounds: int
    gets: int
    limit_s: float
    per_process: int = 0
    """For "many": the most clients of one process, and of one server; 0: all are in one."""

    @property
    def processes(self) -> int:
        """The number of processes with clients, and of servers."""
        return -(-self.connections // self.per_process) if self.per_process else 1

    @property
    def shares(self) -> list[int]:
        """The number of clients in each process."""
        return [
            self.connections * (number + 1) // self.processes - self.connections * number // self.processes
            for number in range(self.processes)
        ]

    @property
    def name(self) -> str:
        """The case in a few words."""
        return f"{self.workload}, {self.connections} {self.axis}"

    @property
    def axis(self) -> str:
        """The unit of ``connections``."""
        return "sessions" if self.of_sessions else "clients"

    @property
    def title(self) -> str:
        """One line that says what is done, and how often."""
        repeated = {"mesh": f", {self.gets} peers", "many": f", {self.processes} of each"} | dict.fromkeys(
            ("barrier", "one_key", "multi_get", "ask"), f", {self.rounds} times"
        )
        return f"{self.workload}: {WORKLOADS[self.workload]}{repeated.get(self.workload, '')}"

    @property
    def of_sessions(self) -> bool:
        """Whether it is in our own protocol."""
        return self.workload in SESSIONS

    def takes(self, target: StoreTarget) -> bool:
        """Whether that server supports it; torch's client in a worker knows neither token nor TLS."""
        return target.kind == "ours" if self.of_sessions else not target.closed

    @property
    def fresh_servers(self) -> bool:
        """Whether every turn needs servers that have held nothing yet."""
        return self.workload == "hold"


@dataclass
class StoreSample:
    """The figures of one run against one server."""

    wall_s: float
    requests: int
    cpu_us: float
    """CPU time of the server for each request."""
    p50_us: float
    p99_us: float
    peak_mib: float
    grown_mib: float
    """Peak memory beyond what was resident before the clients came; what a server needed to start is not included."""
    listen_overflows: int
    listen_drops: int
    failures: dict[str, int] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    """For "many": the seconds of each part."""
    both_cpu_us: float = 0.0
    """For sessions: the CPU time for each request, including that of the sessions' process."""


def measure(case: StoreCase, server: StoreProcess, prefix: str) -> StoreSample:
    """One run. ``prefix`` is put before every key, so that keys are new.

    Raises ``DidNotFinish``, and ``RdzvError`` for a wrong reply or a server that has ended.
    """
    memory = max(resident_memory(server.pid), forget_peak(server.pid))
    who = f"{server.target.name}, {case.connections} connections"
    with clients(who, server.port, echo=server.target.echo) as load:
        if case.workload not in ("storm", "names", "hold"):
            load.connect(case.connections, window=_WINDOW, sources=[], storm=False, limit_s=case.limit_s)
        if case.workload == "multi_get":
            load.run("fill", prefix=prefix, rounds=1, gets=0, limit_s=case.limit_s)
        losses, cpu = listen_losses(), server.settled_cpu_seconds()
        figures = _run(case, load, prefix)
        cpu = server.settled_cpu_seconds() - cpu
        losses = (listen_losses()[0] - losses[0], listen_losses()[1] - losses[1])
        peak = peak_memory(server.pid) or 0.0
    server.settled_cpu_seconds()  # until it has seen its clients go
    return StoreSample(
        wall_s=figures.seconds,
        requests=figures.requests,
        cpu_us=cpu / max(1, figures.requests) * 1e6,
        p50_us=figures.p50_us,
        p99_us=figures.p99_us,
        peak_mib=peak,
        grown_mib=max(0.0, peak - memory),
        listen_overflows=losses[0],
        listen_drops=losses[1],
        failures=figures.failures,
    )


def _run(case: StoreCase, load: Load, prefix: str) -> Figures:
    """The part that is measured."""
    if case.workload == "hold":
        figures = load.connect(case.connections, window=_WINDOW, sources=[], storm=False, limit_s=case.limit_s)
        load.idle(_IDLE_S)
        return figures
    if case.workload in ("storm", "names"):
        sources = [_NAMES_SOURCE] if case.workload == "names" else []
        return load.connect(
            case.connections, window=case.connections, sources=sources, storm=True, limit_s=case.limit_s
        )
    return load.run(case.workload, prefix=prefix, rounds=case.rounds, gets=case.gets, limit_s=case.limit_s)
