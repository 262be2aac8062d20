"""A launcher of one node, in miniature: it starts what ``run/workers`` says, waits, and restarts.

``python starts_workers.py REPORT ARGUMENTS``, both JSON: the arguments are parsed, as parsing imports torch as yet. It
does what an agent will do; its own stdout and stderr are what a user would see.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rdzv_launcher import queued_stderr
from rdzv_launcher.console import open_standard_streams, setup_logging
from rdzv_launcher.run.options import RunOptions
from rdzv_launcher.run.parser import parse_arguments, read_keys
from rdzv_launcher.run.request import build_request
from rdzv_launcher.run.workers.environment import ERROR_FILE, Start, prepare_starts
from rdzv_launcher.run.workers.failures import WorkerFailure, hand_to_scheduler, worker_failure
from rdzv_launcher.run.workers.output.log_files import LogFiles
from rdzv_launcher.run.workers.output.output import Output
from rdzv_launcher.run.workers.spec import WorkersSpec, read_spec
from rdzv_launcher.run.workers.worker_group import Worker, WorkerGroup
from rdzv_plugins.interfaces import StoreInfo


def parsed(argv: list[str]) -> str:
    """A command line, as an argument of this program."""
    return json.dumps(vars(parse_arguments(argv)))


def spec_of(argv: list[str]) -> WorkersSpec:
    return _spec(parsed(argv))


def _spec(text: str) -> WorkersSpec:
    args = RunOptions(**json.loads(text))
    read_keys(args)
    return read_spec(args, build_request(args))


def group_of(nproc: int, attempt: int = 0) -> WorkerGroup:
    """A node alone."""
    workers = tuple(Worker(rank, rank, rank, nproc, nproc) for rank in range(nproc))
    return WorkerGroup("default", 0, 1, workers, StoreInfo("127.0.0.1", 29500), restarts_used=attempt)


def start(each: Start) -> subprocess.Popen[bytes]:
    with ExitStack() as files:
        streams = [files.enter_context(open(path, "wb")) if path else None for path in (each.stdout, each.stderr)]
        return subprocess.Popen(
            each.command, env=dict(each.environment), stdout=streams[0], stderr=streams[1], start_new_session=True
        )


def round_of(spec: WorkersSpec, output: Output, attempt: int) -> list[WorkerFailure]:
    """Start the workers of one round and wait for all; returns those that failed, in the order of their ranks."""
    group = group_of(spec.nproc, attempt)
    starts = prepare_starts(spec, group, output, True)
    processes = {each.local_rank: start(each) for each in starts}
    try:
        codes = {rank: process.wait(120) for rank, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
    output.end()
    group = replace(group, pids={rank: process.pid for rank, process in processes.items()})
    return [
        worker_failure(
            group.failure(each.local_rank, codes[each.local_rank], host="here"),
            time.time(),
            each.environment[ERROR_FILE],
        )
        for each in starts
        if codes[each.local_rank]
    ]


def main(report: str, arguments: str) -> int:
    open_standard_streams()
    setup_logging("rdzv-run", verbose=False)
    rounds: list[list[dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as instead:
        spec = _spec(arguments)
        output = Output(spec, LogFiles(spec, instead))
        failures: list[WorkerFailure] = []
        for attempt in range(spec.max_restarts + 1):
            failures = round_of(spec, output, attempt)
            rounds.append([{"rank": each.local_rank, "code": each.exitcode, "says": each.summary} for each in failures])
            if not failures:
                break
        if failures:
            first = min(failures, key=lambda each: each.timestamp)
            hand_to_scheduler(first.error_file, first.exitcode, os.environ.get(ERROR_FILE, ""))
    Path(report).write_text(json.dumps(rounds))
    queued_stderr.drain()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
