"""Uses torch's TCPStore as a script of its own would, without a launcher: HOST PORT RANK WORLD_SIZE."""

import os
import sys
from datetime import timedelta

import quick_torch  # noqa: F401
from torch.distributed import TCPStore

host, (port, rank, world_size) = sys.argv[1], map(int, sys.argv[2:])
store = TCPStore(host, port, world_size, is_master=False, timeout=timedelta(seconds=60))
store.set(f"value/{rank}", f"of rank {rank}")
values = [store.get(f"value/{other}").decode() for other in range(world_size)]  # waits for those that are not there yet
assert values == [f"of rank {other}" for other in range(world_size)], values
for _ in range(100):
    store.add("sum", rank + 1)
store.barrier("all", world_size, timedelta(seconds=60))
total = store.add("sum", 0)
if rank == 0:
    store.set("last", "word")
store.wait(["last"], timedelta(seconds=60))
print(f"rank {rank} (pid {os.getpid()}): sum {total}", flush=True)
