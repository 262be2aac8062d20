"""A worker of an old round that is late: rank 2 joins the group of its round only when the next one has begun.

The workers of the next round wait until it has tried, and then say in one line of JSON what they were given.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import quick_torch  # noqa: F401
import torch
import torch.distributed as dist

LIMIT = timedelta(seconds=3)
"""For what is to fail."""


def wait_for(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.05)
    return Path(path).read_text()


def write(path: str, text: str) -> None:
    """It is there at once as a whole."""
    Path(f"{path}.{os.getpid()}").write_text(text)
    Path(f"{path}.{os.getpid()}").rename(path)


rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if size == 3 and rank == 2 and "RDZV_AGENTS" in os.environ:  # it would end with its agent: the test starts another
    unmarked = {name: value for name, value in os.environ.items() if name != "RDZV_AGENTS"}
    write("late-worker", json.dumps([[sys.executable, *sys.argv], unmarked]))
    time.sleep(600)
if size == 3:
    write(f"first-{rank}", os.environ["MASTER_PORT"])
    if rank < 2:
        time.sleep(600)  # until the agent restarts us
    wait_for("next")
    try:
        dist.init_process_group("gloo", timeout=LIMIT)
        write("late", "it was let in")
    except Exception as error:
        write("late", "refused" if "trying to connect to" in str(error) else f"it was let in, and then: {error}")
    sys.exit(0)
write("next", os.environ["MASTER_PORT"])
late = wait_for("late")
dist.init_process_group("gloo", timeout=timedelta(seconds=30))
total = torch.tensor([float(rank)])
dist.all_reduce(total)
report = {"RANK": rank, "WORLD_SIZE": size, "PORT": int(os.environ["MASTER_PORT"]), "SUM": total.item(), "LATE": late}
sys.stdout.write(json.dumps(report) + "\n")
sys.stdout.flush()
dist.barrier()
dist.destroy_process_group()  # else torch aborts now and then when the process ends
