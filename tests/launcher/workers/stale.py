"""Two gloo ranks, rank 1 late, a restart forced after every success until ROUNDS have succeeded.

LIMIT is gloo's time-out in seconds.
Every round's end is appended to the log given: ``ok`` or the error of init_process_group. A rank that
starts before its peer meets whatever an earlier round has left in the store.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import quick_torch  # noqa: F401
import torch
import torch.distributed as dist

log, rounds, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rank = int(os.environ["RANK"])
if rank == 1:
    time.sleep(1.5)  # this is the scenario, not synchronisation: the peer starts first
try:
    dist.init_process_group("gloo", timeout=timedelta(seconds=limit))
    dist.all_reduce(torch.ones(1))
    dist.barrier()
except Exception as error:
    with log.open("a") as file:
        file.write(f"rank {rank} failed: {str(error).splitlines()[0]}\n")
    sys.exit(13)
done = log.read_text().count("ok\n") if log.exists() else 0
dist.barrier()  # both have counted before rank 0 adds to it
if rank == 0:
    with log.open("a") as file:
        file.write("ok\n")
dist.barrier()
dist.destroy_process_group()  # else torch aborts now and then when the process ends
sys.exit(0 if done + 1 >= rounds else 17)
