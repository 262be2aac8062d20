"""A rank of a gloo group: looks in its store for what an earlier round has written, adds up the ranks, and reports.

The report is one line of JSON. With the argument ``crash``, rank 1 kills itself in the first round after all have
reported.
"""

import gc
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

gc.disable()  # half of the time of importing torch is spent on looking for garbage that is not there
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

gc.freeze()
gc.enable()

LIMIT = timedelta(seconds=90)
NAMES = (
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT "
    "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_RUN_ID"
)


def report(**found: object) -> None:
    """Print the report at once and as a whole."""
    sys.stdout.write(json.dumps({name: os.environ[name] for name in NAMES.split()} | found) + "\n")
    sys.stdout.flush()


rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=LIMIT)
keys = [f"conformance/rank{each}" for each in range(world)]
if store.check(keys[rank : rank + 1]):  # nobody else writes it: in a store of this round it cannot be there yet
    report(STALE=store.get(keys[rank]).decode())
    sys.exit(21)
store.set(keys[rank], f"written by pid {os.getpid()}")
dist.init_process_group("gloo", timeout=LIMIT)
total = torch.tensor([rank + 1])
dist.all_reduce(total)
report(SUM=total.item(), STALE=None, MET=[store.get(key).decode() for key in keys], PID=os.getpid())
dist.barrier()
crashed = Path("crashed")
if sys.argv[1:] == ["crash"] and rank == 1 and not crashed.exists():
    crashed.touch()
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
dist.destroy_process_group()
