"""A stock worker, as any training script begins: only the environment says where the store is. Prints what it got."""

import json
import os

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")  # env://
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    everyone = torch.tensor([rank + 1.0, 1.0])
    dist.all_reduce(everyone)

    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = torch.tensor([rank + 1.0])
    dist.all_reduce(mine, group=halves[rank // 2])

    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "pid": os.getpid()})
    dist.barrier()
    dist.monitored_barrier()
    store.set(f"report/{rank}", str(os.getpid()))
    pids = [int(store.get(f"report/{other}")) for other in range(size)]
    dist.barrier()
    dist.destroy_process_group()
    ranks = [each["rank"] for each in gathered]  # type: ignore[index]
    print(json.dumps({"sum": everyone.tolist(), "half": mine.item(), "ranks": ranks, "pids": pids}))


if __name__ == "__main__":
    main()
