"""The workloads of ``rdzv bench store`` in our own protocol: sessions of nodes, which may be closed to strangers."""

from __future__ import annotations

from rdzv_launcher.bench.method.readings import peak_memory
from rdzv_launcher.bench.method.turns import DidNotFinish
from rdzv_launcher.bench.processes.parts import Part
from rdzv_launcher.bench.store.cases import StoreCase, StoreSample
from rdzv_launcher.bench.store.servers import StoreProcess


def measure_sessions(case: StoreCase, server: StoreProcess, prefix: str) -> StoreSample:
    """One run. Sessions end with the process that has them, a new one for each run.

    Raises ``DidNotFinish``, and ``RdzvError`` for a wrong reply or a process that has ended.
    """
    opening = {"phase": "open", "sessions": case.connections, "limit_s": case.limit_s}
    asking = {"phase": "ask", "prefix": prefix, "rounds": case.rounds, "limit_s": case.limit_s}
    with Part("sessions", port=server.port, conf=dict(server.conf)) as nodes:
        nodes.start()
        if case.workload == "ask":
            _figures(nodes.question(**opening))
        cpu, theirs = server.settled_cpu_seconds(), nodes.own_cpu_seconds()
        figures = _figures(nodes.question(**(opening if case.workload == "open" else asking)))
        cpu, theirs = server.settled_cpu_seconds() - cpu, nodes.own_cpu_seconds() - theirs
        peak = peak_memory(server.pid) or 0.0
    server.settled_cpu_seconds()  # until it has seen its sessions go
    each = 1e6 / figures["requests"]
    return StoreSample(
        wall_s=figures["seconds"],
        requests=int(figures["requests"]),
        cpu_us=cpu * each,
        p50_us=figures["p50_us"],
        p99_us=figures["p99_us"],
        peak_mib=peak,
        grown_mib=0.0,
        listen_overflows=0,
        listen_drops=0,
        both_cpu_us=(cpu + theirs) * each,
    )


def _figures(answer: dict[str, float]) -> dict[str, float]:
    if "unfinished" in answer:
        raise DidNotFinish(str(answer["unfinished"]))
    return answer
