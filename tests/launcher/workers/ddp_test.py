"""The script of torch_npu_run's examples. To be cheap, only the first and the last rank are gloo's, and import torch.

All ranks meet in the workers' store by raw requests before that, and say in one line of JSON where it was.
PYTHONPATH leads to the kits: the script is copied into a directory of its own.
"""

import json
import os
import sys

from kits.wire.wire_client import WAIT, Raw, add, get, keyed, set_

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with Raw(int(os.environ["MASTER_PORT"])) as client:
    client.socket.settimeout(200)  # it waits for others to start
    client.send(set_(b"/ddp/%d" % rank, b"%d" % rank))
    total = 0
    for other in range(world):
        assert client.ask(keyed(WAIT, [b"/ddp/%d" % other]), 1) == b"\0"
        client.send(get(b"/ddp/%d" % other))
        total += int(client.receive_text())
    names = "RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT"
    report = {name: os.environ[name] for name in names.split()}
    report |= {"ROOT": os.environ.get("RDZV_ROOT_ADDR", "none"), "TOTAL": total}

    if rank in (0, world - 1):
        os.environ |= {"RANK": str(min(rank, 1)), "WORLD_SIZE": "2"}
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        weight = torch.ones(1)
        dist.all_reduce(weight)
        report["GLOO"] = weight.item()
        dist.destroy_process_group()

    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    client.send(add(b"/ddp/done", 1))  # nobody leaves before all have read
    if client.receive_i64() == world:
        client.send(set_(b"/ddp/all", b""))
    assert client.ask(keyed(WAIT, [b"/ddp/all"]), 1) == b"\0"
