"""Meets at an address of the script's own, beside the agent's store, and then in that, too."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
for method in (f"tcp://127.0.0.1:{sys.argv[1]}", "env://"):
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world_size, timeout=limit)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == world_size
    dist.destroy_process_group()
