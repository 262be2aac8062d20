"""Jobs of two nodes by torch's own ``elastic_launch``, one after the other; prints how each of them ended, as JSON.

Each line of its input asks for some, as a list: DIRECTORY, BACKEND, JOBS, BARRIER, FIRST, SECOND, SETTINGS. BARRIER is
torch's exit barrier in seconds, or null; FIRST and SECOND are the shell commands of the nodes' workers. The nodes are
forks of this process, which has imported torch once.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import time
import traceback
import uuid
from pathlib import Path

import torch.distributed.launcher.api as api
import torch.distributed.run  # noqa: F401  (imported once, here)

from rdzv_plugins.testing.harness import free_port


def main() -> None:
    for line in sys.stdin:
        run(*json.loads(line))


def run(
    directory: str, backend: str, jobs: int, barrier: float | None, first: str, second: str, settings: dict[str, str]
) -> None:
    reports = []
    for job in range(jobs):
        folder = Path(directory, f"{backend}-{job}-{uuid.uuid4().hex[:4]}")
        folder.mkdir()
        start = time.monotonic()
        endpoint = f"127.0.0.1:{free_port()}"
        nodes = [
            fork(folder, rank, backend, endpoint, barrier, command, settings)
            for rank, command in enumerate((first, second))
        ]
        codes = {pid: os.waitstatus_to_exitcode(status) for pid, status in (os.wait() for _ in nodes)}
        outputs = [(folder / f"node-{rank}").read_text(errors="replace") for rank in (0, 1)]
        report = {"codes": [codes[pid] for pid in nodes], "outputs": outputs, "seconds": time.monotonic() - start}
        reports.append(report)
    print(json.dumps(reports), flush=True)


def fork(
    folder: Path, rank: int, backend: str, endpoint: str, barrier: float | None, command: str, settings: dict[str, str]
) -> int:
    """One node; its workers and its agent write to one file."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        output = os.open(folder / f"node-{rank}", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if barrier is not None:
            api.LocalElasticAgent = functools.partial(api.LocalElasticAgent, exit_barrier_timeout=barrier)
        config = api.LaunchConfig(
            min_nodes=2,
            max_nodes=2,
            nproc_per_node=1,
            run_id="plain",
            rdzv_backend=backend,
            rdzv_endpoint=endpoint,
            rdzv_configs=settings | ({"rank": str(rank)} if backend.endswith("static") else {}),
            max_restarts=0,
            monitor_interval=0.1,
        )
        api.elastic_launch(config, "/bin/sh")("-c", f"echo worker {rank} starts; {command}; echo worker {rank} ends")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # what torch has made is neither looked through nor copied by the forks
    main()
