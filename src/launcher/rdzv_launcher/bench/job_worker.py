"""A worker of ``rdzv bench launch`` and ``faults``, which says what it does in lines of JSON.

It says when it starts. With ``line`` it then waits for the end of its standard input, without torch, so that what shows
is the launcher's own time. With ``collective`` or ``endless`` it joins the gloo group, and says after its first
all_reduce what rank 0 has drawn for this group: ranks that say the same belong to one round; ``endless`` adds up again
and again, until somebody ends it. The second argument is gloo's time-out, in seconds. It runs as a copy in a directory
of its own, since Python looks for modules beside a script first, and some here have the names of parts of Python.
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
    """Print one line, at once and as a whole: workers share where it goes."""
    os.write(1, f"{PREFIX}{json.dumps(what | {'pid': os.getpid(), 'at': time.monotonic()})}\n".encode())


def main(mode: str, timeout_s: float) -> None:
    """Run until killed, until a collective fails, or until the end of the input."""
    say()
    if mode == "line":
        sys.stdin.buffer.read()
        return
    if mode == "endless":
        gc.disable()  # half of the CPU time of importing torch goes into looking for garbage that is not there
    import torch
    import torch.distributed as dist

    gc.freeze()
    gc.enable()
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    drawn = torch.tensor([random.getrandbits(62) if dist.get_rank() == 0 else 0])
    dist.all_reduce(drawn)
    say(round=int(drawn.item()), rank=dist.get_rank(), world=dist.get_world_size())
    while mode == "endless":
        dist.all_reduce(torch.ones(1))
        time.sleep(_PACE_S)
    sys.stdin.buffer.read()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
