"""``rdzv stacks``: where the workers of a running job are, or those of this machine, the odd ones first.

Those of this machine are found by their environment: of every backend, of torchrun, of stopped agents. A worker has
the variables of its rank, and its parent has not, or has those of another rank. Workers that were forked with
--preload are not found: the kernel reports the variables with which their interpreter was started.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from rdzv_launcher.run.stacks import processes
from rdzv_launcher.run.stacks.node import NodeSnapshot, StackedWorker
from rdzv_launcher.run.stacks.processes import StackedProcess
from rdzv_launcher.run.stacks.reading import NATIVE_S, gather
from rdzv_launcher.run.stacks.reports import Silent, WorkerReport, grouped, headline, read, report_text
from rdzv_launcher.run.supervisor.messages import NAME as SUPERVISOR
from rdzv_launcher.tools.job import add_job_flags, ask_job, request_of
from rdzv_plugins.errors import UsageError
from rdzv_plugins.questions import STACKS
from rdzv_plugins.stacks_on_request import VARIABLE
from rdzv_plugins.system.processes import all_pids

_RUN, _RANK, _LOCAL, _NODE = "TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK", "GROUP_RANK"
_AGENT = re.compile(r"(^|/)rdzv-run( |$)|rdzv_launcher\.run(\.cli)?( |$)")


def local_jobs(run_id: str = "") -> dict[tuple[str, str], list[NodeSnapshot]]:
    """The nodes of each job that are here, by its id and the address of its workers' store: an id may be used twice.

    ``run_id``: only those with this id. Linux: elsewhere there are none.
    """
    environments = {pid: env for pid in all_pids() if _RUN in (env := processes.environment(pid))}
    nodes: dict[tuple[str, str, int], list[tuple[int, Mapping[str, str]]]] = {}
    for pid, env in sorted(environments.items()):
        process = processes.look(pid)
        if process is None or not processes.is_there(process) or not _is_worker(env, environments.get(process.parent)):
            continue
        if run_id in ("", env[_RUN]):
            nodes.setdefault((env[_RUN], _store(env), _agent_of(process)), []).append((pid, env))
    jobs: dict[tuple[str, str], list[NodeSnapshot]] = {}
    for (run, store, agent), workers in nodes.items():
        jobs.setdefault((run, store), []).append(_node(agent, workers))
    return jobs


def read_job(
    nodes: Sequence[NodeSnapshot], *, until: float, native: float, children: bool
) -> tuple[list[WorkerReport], list[Silent]]:
    """The workers of a job's nodes here, and what has to be said about their agents.

    ``until``: the time (monotonic) for all of it, and for native frames.
    """
    workers, agents = list[WorkerReport](), list[Silent]()
    for node in nodes:
        now = time.monotonic()
        workers += gather(node, within=max(1.0, until - now), children=children, native=max(0.0, native - now))
        agent = processes.look(node.agent)
        name = f"the agent of {'these workers' if node.node_rank is None else f'node {node.node_rank}'}"
        if node.agent <= 1 or agent is None:
            agents.append(Silent(name, "is gone; its workers were left behind", "agent"))
        elif agent.state in "Tt":
            stopped = f"is stopped; resume it with kill -CONT {node.agent}"
            agents.append(Silent(f"{name} (pid {node.agent})", stopped, "agent"))
    return workers, agents


def idle_agents(busy: Set[int]) -> list[int]:
    """The agents of rdzv-run, but for the ``busy`` ones, which have workers now."""
    found = (processes.look(pid) for pid in all_pids() if pid not in busy)
    agents = [each for each in found if processes.is_there(each) and _AGENT.search(each.command)]
    return [each.pid for each in agents if processes.name_of(each.pid) != SUPERVISOR]


def _agent_of(worker: StackedProcess) -> int:
    """The worker's parent; if that is a supervisor, the supervisor's parent."""
    supervisor = processes.look(worker.parent) if processes.name_of(worker.parent) == SUPERVISOR else None
    return worker.parent if supervisor is None else supervisor.parent


def _is_worker(env: Mapping[str, str], parents: Mapping[str, str] | None) -> bool:
    """Whether it is a worker, and not a process started by one, which inherits its variables."""
    if not (env.get(_RANK, "").isdecimal() and env.get(_LOCAL, "").isdecimal()):
        return False
    names = (_RUN, _RANK, _LOCAL)
    return parents is None or any(parents.get(name) != env.get(name) for name in names)


def _store(env: Mapping[str, str]) -> str:
    names = ("RDZV_ROOT_ADDR", "RDZV_ROOT_PORT") if "RDZV_ROOT_ADDR" in env else ("MASTER_ADDR", "MASTER_PORT")
    return ":".join(env.get(name, "") for name in names)


def _node(agent: int, workers: list[tuple[int, Mapping[str, str]]]) -> NodeSnapshot:
    env = workers[0][1]
    rank, own = env.get(_NODE, ""), env.get(VARIABLE, "").rpartition(",")[0]
    return NodeSnapshot(
        host=socket.gethostname(),
        agent=agent,
        node_rank=int(rank) if rank.isdecimal() else None,
        workers=tuple(StackedWorker(int(each[_RANK]), int(each[_LOCAL]), pid) for pid, each in workers),
        own_stacks=Path(own) if own else None,
    )


HERE = "To read the workers of one machine, run `rdzv stacks` there without --rdzv-endpoint."
_ON_THE_WAY_S = 1.0
"""The part of the time for an answer that its transport may take."""


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    parser = commands.add_parser("stacks", help="show the stacks of a job's workers, those that differ first")
    add_job_flags(
        parser,
        endpoint_help="the job's endpoint or endpoints, to ask all of its nodes; if unset, show the workers of "
        "this machine, of any backend",
        endpoint_required=False,
        timeout=20.0,
    )
    for flag, what in (
        ("--children", "include processes started by the workers (data loaders)"),
        ("--native", "wait for native frames (default: only those that can be read within 3 seconds)"),
        ("--threads", "show all threads of the workers, not only the main ones"),
        ("--json", "print everything as JSON"),
    ):
        parser.add_argument(flag, action="store_true", help=what)


def run(args: argparse.Namespace) -> int:
    """Ask and print; returns the exit code, which is 1 if a node or a worker is missing. Raises ``RdzvError``."""
    if not 2 <= args.timeout <= 120:
        raise UsageError(f"--timeout={args.timeout:g} is not between 2 and 120 seconds")
    if args.rdzv_endpoint:
        return _remote(args)
    if args.rdzv_backend or args.rdzv_conf:
        raise UsageError(
            "--rdzv-backend and --rdzv-conf need --rdzv-endpoint",
            remedy="Leave them out to read the workers of this machine.",
        )
    return _local(args)


def _remote(args: argparse.Namespace) -> int:
    arguments = {"within": max(1.0, args.timeout - _ON_THE_WAY_S), "children": args.children, "native": args.native}
    answers = ask_job(request_of(args), STACKS, arguments, args.timeout, otherwise=HERE)
    workers, silent = read(answers)
    if args.json:
        nodes = [to_builtins(each) for each in answers]
        print(json.dumps({"endpoint": args.rdzv_endpoint, "nodes": nodes} | _summary(workers, silent), indent=2))
    else:
        print(report_text(workers, silent, threads=args.threads), flush=True)
    return _code(workers, silent)


def _local(args: argparse.Namespace) -> int:
    if not os.path.exists("/proc/self/environ"):
        raise UsageError("local workers can be found on Linux only: it takes /proc", remedy="Give --rdzv-endpoint.")
    jobs = local_jobs(args.rdzv_id)
    until = time.monotonic() + args.timeout
    native = until if args.native else time.monotonic() + NATIVE_S
    codes, found, texts = [], [], []
    for (run, _), nodes in jobs.items():
        workers, agents = read_job(nodes, until=until, native=native, children=args.children)
        codes.append(_code(workers, agents))
        found.append({"run": run} | _summary(workers, agents))
        name = f"run {run!r} on this machine: " if len(jobs) > 1 or run != "none" else "on this machine: "
        texts.append(name + report_text(workers, agents, threads=args.threads))
    idle = [] if args.rdzv_id else idle_agents({node.agent for nodes in jobs.values() for node in nodes})
    if idle:
        texts.append(f"agents without workers: pid {', '.join(map(str, idle))}; `rdzv status` shows who is missing")
    if not jobs:
        of = f" of run {args.rdzv_id!r}" if args.rdzv_id else ""
        others = "" if os.geteuid() == 0 else " (those of other users are not visible)"
        texts.insert(0, f"no worker{of} on this machine{others}")
    print(json.dumps({"runs": found, "idle_agents": idle}, indent=2) if args.json else "\n\n".join(texts), flush=True)
    return max(codes, default=1)


def _summary(workers: Sequence[WorkerReport], silent: Sequence[Silent]) -> dict[str, Any]:
    groups = grouped(workers)
    told = [
        {"ranks": each.ranks, "kind": each.kind, "where": each.where, "workers": _plain(each.workers)}
        for each in groups
    ]
    return {"headline": headline(groups, silent), "groups": told, "silent": _plain(silent)}


def _plain(value: Any) -> Any:
    """The values of a report, by the names that they have here."""
    if isinstance(value, Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    return list(map(_plain, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _code(workers: Sequence[WorkerReport], silent: Sequence[Silent]) -> int:
    missing = any(each.kind != "idle" for each in silent) or any(each.kind == "unknown" for each in grouped(workers))
    return 1 if missing or not (workers or silent) else 0
