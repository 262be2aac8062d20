"""A stock worker: joins the gloo group, and says which modules of ours it has, and whether torch's Store is torch's."""

import json
import sys

import torch.distributed as dist
from torch.distributed.rendezvous import _env_rendezvous_handler, _rendezvous_handlers

dist.init_process_group("gloo")
dist.barrier()
ours = sorted(name for name in sys.modules if name.partition(".")[0] in ("rdzv_plugins", "rdzv_launcher"))
plain = _rendezvous_handlers["env"] is _env_rendezvous_handler
plain = plain and type(dist.Store.set).__name__ != "function"
sys.stdout.write(json.dumps({"ours": ours, "plain": plain}) + "\n")
sys.stdout.flush()
dist.destroy_process_group()
