"""A stock worker: joins the gloo group by env://, and uses store and collectives.

It prints how it reaches the store, which modules of ours it has, and whether torch's Store is torch's.
"""

import json
import os
import socket
import sys

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import _env_rendezvous_handler, _rendezvous_handlers

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
total = torch.tensor([float(rank)])
dist.all_reduce(total)
gathered: list[object] = [None] * size
dist.all_gather_object(gathered, rank, group=dist.new_group(list(range(size))))
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
ours = sorted(name for name in sys.modules if name.partition(".")[0] in ("rdzv_plugins", "rdzv_launcher"))
plain = _rendezvous_handlers["env"] is _env_rendezvous_handler and type(dist.Store.set).__name__ != "function"
report = {"rank": rank, "sum": total.item(), "all": gathered, "said": said, "by": found, "ours": ours, "plain": plain}
sys.stdout.write(json.dumps(report) + "\n")
sys.stdout.flush()
dist.barrier()
dist.destroy_process_group()
