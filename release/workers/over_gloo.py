"""A worker with torch: an all-reduce over gloo."""

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
number = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(number)
os.write(1, f"rank {dist.get_rank()} of {dist.get_world_size()}: the sum is {int(number)}\n".encode())
time.sleep(0.1)  # gloo of torch 2.13 may hang when a group is destroyed while a peer is in its last collective
dist.destroy_process_group()
