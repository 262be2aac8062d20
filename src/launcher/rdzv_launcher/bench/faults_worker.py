"""A worker of ``rdzv bench faults``: joins the gloo group and adds up, again and again, until somebody ends it.

It prints a line when it starts, and one after its first collective, with what rank 0 has drawn for this group: ranks
that say the same belong to one round. Argument: gloo's time-out, in seconds. It runs as a copy in a directory of its
own, like that of ``rdzv bench launch``.
"""

import gc
import json
import os
import random
import sys
import time
from datetime import timedelta

PREFIX = "bench "
_PACE_S = 0.02
"""Seconds between two collectives: the job is to be disturbed, but the machine not kept busy."""


def say(**what: int | float) -> None:
    """Print one line, at once and as a whole."""
    os.write(1, f"{PREFIX}{json.dumps(what | {'pid': os.getpid(), 'at': time.monotonic()})}\n".encode())


def main() -> None:
    """Run until killed, or until a collective fails."""
    say()
    gc.disable()  # half of the CPU time of importing torch goes into looking for garbage that is not there
    import torch
    import torch.distributed as dist

    gc.freeze()
    gc.enable()
    dist.init_process_group("gloo", timeout=timedelta(seconds=float(sys.argv[1])))
    drawn = torch.tensor([random.getrandbits(62) if dist.get_rank() == 0 else 0])
    dist.all_reduce(drawn)
    say(round=int(drawn.item()), rank=dist.get_rank(), world=dist.get_world_size())
    while True:
        dist.all_reduce(torch.ones(1))
        time.sleep(_PACE_S)


if __name__ == "__main__":
    main()
