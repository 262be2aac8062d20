"""The smallest job on Ascend devices: every worker adds its rank, all get the sum. Says how long the start has taken.

    rdzv-run --rdzv_backend=tiered --nnodes=2 --master_addr=10.0.0.7 --nproc-per-node=npu examples/npu/all_reduce.py

With torch_npu it takes HCCL. That has NOT BEEN RUN by this project: no such device was at hand. Without torch_npu it
takes gloo on the processor, which is how it has been run. It knows nothing of the launcher: torchrun starts it as well.
"""

from __future__ import annotations

import importlib.util
import os
import time

import torch
import torch.distributed as dist


def choose_device() -> tuple[str, torch.device]:
    """The backend for collectives, and this worker's device."""
    local_rank = int(os.environ["LOCAL_RANK"])
    if importlib.util.find_spec("torch_npu"):
        import torch_npu  # for the device; the rendezvous needs no import

        torch_npu.npu.set_device(local_rank)
        return "hccl", torch.device("npu", local_rank)
    return "gloo", torch.device("cpu")


def main() -> None:
    start = time.monotonic()
    backend, device = choose_device()
    dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([float(rank)], device=device)
    dist.all_reduce(total)  # HCCL makes its connections at the first collective
    if total.item() != world * (world - 1) / 2:
        raise SystemExit(f"rank {rank}: the sum is {total.item()}, not {world * (world - 1) / 2}")
    if rank == 0:
        took = time.monotonic() - start
        print(f"{world} workers by {backend}: sum {total.item():g}, {took:.2f} s to here", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
