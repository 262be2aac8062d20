"""What a launch makes of its flags, without one."""

from __future__ import annotations

from rdzv_launcher.run.parser import parse_arguments, read_keys
from rdzv_launcher.run.request import build_request
from rdzv_launcher.run.workers.spec import WorkersSpec, read_spec
from rdzv_launcher.run.workers.worker_group import Worker, WorkerGroup
from rdzv_plugins.interfaces import StoreInfo


def spec_of(argv: list[str]) -> WorkersSpec:
    args = parse_arguments(argv)
    read_keys(args)
    return read_spec(args, build_request(args))


def group_of(nproc: int) -> WorkerGroup:
    """A node alone."""
    workers = tuple(Worker(rank, rank, rank, nproc, nproc) for rank in range(nproc))
    return WorkerGroup(0, 1, workers, StoreInfo("127.0.0.1", 29500))
