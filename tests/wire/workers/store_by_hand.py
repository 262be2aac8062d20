"""A script that knows of no launcher: dist.TCPStore by hand, and a process group on it. Arguments: port, rank, size."""

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist


def main(port: int, rank: int, size: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, size, is_master=False, timeout=timedelta(seconds=150))
    if rank == 0:
        store.set("greeting", "hello")
    greeting = store.get("greeting").decode()
    dist.init_process_group("gloo", store=dist.PrefixStore("job", store), rank=rank, world_size=size)
    tensor = torch.tensor([float(rank + 1)])
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    print(json.dumps({"greeting": greeting, "sum": tensor.item()}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
