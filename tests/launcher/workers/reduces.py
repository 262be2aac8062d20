"""A rank of a gloo group that is never done: it fails with its peers."""

import time

import quick_torch  # noqa: F401
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("reduced", flush=True)
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.01)
