"""A stock worker: joins the gloo group by env://, uses store and collectives, and prints how it reaches the store."""

import json
import os
import socket
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
total = torch.tensor([float(rank)])
dist.all_reduce(total)
group = dist.new_group(list(range(size)))
gathered: list[object] = [None] * size
dist.all_gather_object(gathered, rank, group=group)
dist.monitored_barrier()
store = dist.distributed_c10d._get_default_store()
store.set(f"said/{rank}", str(rank))
said = [store.get(f"said/{other}").decode() for other in range(size)]
path, port = os.environ.get("RDZV_STORE_SOCKET", ""), int(os.environ["MASTER_PORT"])
wanted = b"\0" + path[1:].encode() if path.startswith("@") else path
found = []
for entry in os.listdir("/proc/self/fd"):
    try:
        end = socket.socket(fileno=int(entry))
    except OSError:
        continue
    try:
        peer = end.getpeername()
        if isinstance(peer, tuple):
            found += ["tcp"] * (peer[1] == port)
        elif peer and peer == wanted:
            found.append("unix")
    except OSError:  # it listens
        pass
    finally:
        end.detach()
sys.stdout.write(json.dumps({"rank": rank, "sum": total.item(), "all": gathered, "said": said, "by": found}) + "\n")
sys.stdout.flush()
dist.barrier()
dist.destroy_process_group()
