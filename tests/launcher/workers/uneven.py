"""Rank 0 is done at once; rank 1 fails afterwards, in the first round only."""

import os
import sys
import time
from pathlib import Path

import quick_torch  # noqa: F401
import torch.distributed as dist

dist.init_process_group("gloo")
print("joined", flush=True)
dist.barrier()
marker = Path("failed-once")
if os.environ["RANK"] == "1" and not marker.exists():
    marker.touch()
    store = dist.distributed_c10d._get_default_store()
    print("rank 0 is about to end", flush=True)
    status = Path(f"/proc/{int(store.get('pid'))}/status")
    try:
        while "State:\tZ" not in status.read_text():
            time.sleep(0.01)
    except OSError:  # there is no such process any more
        pass
    sys.exit(5)
if os.environ["RANK"] == "0":
    dist.distributed_c10d._get_default_store().set("pid", str(os.getpid()))
os._exit(0)
