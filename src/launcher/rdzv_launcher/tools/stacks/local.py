"""The workers of this machine, found by their environment: of every backend, of torchrun, of stopped agents.

A worker has the variables of its rank, and its parent has not, or has those of another rank. Workers that were forked
with --preload are not found: the kernel reports the variables with which their interpreter was started.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rdzv_launcher.run.keeper.messages import NAME as KEEPER
from rdzv_launcher.run.stacks import processes
from rdzv_launcher.run.stacks.gathering import gather
from rdzv_launcher.run.stacks.node import Node, Worker
from rdzv_launcher.run.stacks.processes import Process
from rdzv_launcher.run.stacks.reports import Silent, WorkerReport, workers_of
from rdzv_plugins.linux.children import all_pids
from rdzv_plugins.stacks_on_request import VARIABLE

_RUN, _RANK, _LOCAL, _NODE = "TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK", "GROUP_RANK"
_AGENT = re.compile(r"(^|/)rdzv-run( |$)|rdzv_launcher\.run(\.cli)?( |$)")


@dataclass
class LocalJob:
    """The nodes of one job that are on this machine."""

    run_id: str
    store: str
    """The address of its workers' store: different jobs may have the same id."""
    nodes: list[Node] = field(default_factory=list)


def local_jobs(run_id: str = "") -> list[LocalJob]:
    """The jobs that have workers here; ``run_id``: only those with this id. Linux: elsewhere there are none."""
    environments = {pid: env for pid in all_pids() if _RUN in (env := processes.environment(pid))}
    nodes: dict[tuple[str, str, int], list[tuple[int, Mapping[str, str]]]] = {}
    for pid, env in sorted(environments.items()):
        process = processes.look(pid)
        if process is None or not processes.is_there(process) or not _is_worker(env, environments.get(process.parent)):
            continue
        if run_id in ("", env[_RUN]):
            nodes.setdefault((env[_RUN], _store(env), _agent_of(process)), []).append((pid, env))
    jobs: dict[tuple[str, str], LocalJob] = {}
    for (run, store, agent), workers in nodes.items():
        jobs.setdefault((run, store), LocalJob(run, store)).nodes.append(_node(run, agent, workers))
    return list(jobs.values())


def read_job(job: LocalJob, *, until: float, native: float, children: bool) -> tuple[list[WorkerReport], list[Silent]]:
    """The job's workers here, and what has to be said about their agents.

    ``until``: the time (monotonic) for all of it, and for native frames.
    """
    workers, agents = [], []
    for node in job.nodes:
        now = time.monotonic()
        answer = gather(node, within=max(1.0, until - now), children=children, native=max(0.0, native - now))
        workers += workers_of(answer)
        agent = processes.look(node.agent)
        name = f"the agent of {'these workers' if node.node_rank is None else f'node {node.node_rank}'}"
        if node.agent <= 1 or agent is None:
            agents.append(Silent(name, "has gone: its workers were left behind", "agent"))
        elif agent.state in "Tt":
            stopped = f"is stopped; kill -CONT {node.agent} lets it go on"
            agents.append(Silent(f"{name} (pid {node.agent})", stopped, "agent"))
    return workers, agents


def idle_agents(jobs: list[LocalJob]) -> list[int]:
    """Agents of rdzv-run that have no workers now."""
    busy = {node.agent for job in jobs for node in job.nodes}
    found = (processes.look(pid) for pid in all_pids() if pid not in busy)
    agents = [each for each in found if each is not None and processes.is_there(each) and _AGENT.search(each.command)]
    return [each.pid for each in agents if processes.name_of(each.pid) != KEEPER]


def _agent_of(worker: Process) -> int:
    """The worker's parent; if that is a keeper, the keeper's parent."""
    keeper = processes.look(worker.parent) if processes.name_of(worker.parent) == KEEPER else None
    return worker.parent if keeper is None else keeper.parent


def _is_worker(env: Mapping[str, str], parents: Mapping[str, str] | None) -> bool:
    """Whether it is a worker, and not a process started by one, which inherits its variables."""
    if not (env.get(_RANK, "").isdecimal() and env.get(_LOCAL, "").isdecimal()):
        return False
    names = (_RUN, _RANK, _LOCAL)
    return parents is None or any(parents.get(name) != env.get(name) for name in names)


def _store(env: Mapping[str, str]) -> str:
    names = ("RDZV_ROOT_ADDR", "RDZV_ROOT_PORT") if "RDZV_ROOT_ADDR" in env else ("MASTER_ADDR", "MASTER_PORT")
    return ":".join(env.get(name, "") for name in names)


def _node(run: str, agent: int, workers: list[tuple[int, Mapping[str, str]]]) -> Node:
    env = workers[0][1]
    rank, own = env.get(_NODE, ""), env.get(VARIABLE, "").rpartition(",")[0]
    return Node(
        host=socket.gethostname(),
        agent=agent,
        run_id=run,
        node_rank=int(rank) if rank.isdecimal() else None,
        workers=tuple(Worker(int(each[_RANK]), int(each[_LOCAL]), pid) for pid, each in workers),
        own_stacks=Path(own) if own else None,
    )
