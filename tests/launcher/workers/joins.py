"""A rank of a gloo group that meets at a store somebody else serves."""

import quick_torch  # noqa: F401
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"ranks: {total.item():g}", flush=True)
dist.destroy_process_group()
