"""Functions that launches from Python run in their workers. They import no torch unless they need it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

RETURNS_FIRST = Path(__file__).parents[2] / "launcher/workers/returns_first.py"


def reports(*arguments: Any, **keywords: Any) -> dict[str, Any]:
    """What a worker can see."""
    return {
        "arguments": arguments,
        "keywords": keywords,
        "pid": os.getpid(),
        "parent": Path(f"/proc/{os.getppid()}/comm").read_text().strip(),
        "session": os.getsid(0) == os.getpid(),
        "cwd": os.getcwd(),
        "process": multiprocessing.current_process().name,
        "threads": [each is threading.main_thread() for each in threading.enumerate()],
        "signals": [
            signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
            signal.getsignal(signal.SIGINT) == signal.default_int_handler,
            signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN,
        ],
        "supervisor": Path("/proc/self/comm").read_text().strip() == "rdzv-supervisor",
        "environ": {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "ROLE_NAME", "MINE")},
    }


def returns(value: Any) -> Any:
    return value


def returns_first(directory: str) -> bool:
    import runpy

    found: bool = runpy.run_path(str(RETURNS_FIRST))["returns_first"](directory)
    return found


def raises(text: str, rank: int = 0) -> None:
    """In one of them; the others wait for their end."""
    if int(os.environ["RANK"]) == rank:
        raise ValueError(text)
    time.sleep(300)


def ends(how: str) -> None:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(3)


def fails_at_first() -> str:
    """Ends well after a restart."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RuntimeError("not yet")
    return os.environ["TORCHELASTIC_RESTART_COUNT"]


def says() -> None:
    """A line for each stream, whole."""
    for stream, name in ((sys.stdout, "stdout"), (sys.stderr, "stderr")):
        stream.write(f"rank {os.environ['RANK']} says {name}\n")
        stream.flush()


def starts_and_waits(place: str) -> None:
    """Says that it is there, with a process of its own."""
    if os.fork() == 0:
        time.sleep(300)
        os._exit(0)
    Path(place, os.environ["RANK"]).touch()
    time.sleep(300)


def sums(number: float) -> float:
    """Over all ranks, by gloo."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor(number * (1 + dist.get_rank()))
    dist.all_reduce(total)
    dist.barrier()
    time.sleep(0.1)
    dist.destroy_process_group()
    return float(total)


def kills_the_agent() -> None:
    """The parent of its supervisor."""
    supervisor = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(supervisor.rpartition(")")[2].split()[1]), signal.SIGKILL)
    time.sleep(300)
