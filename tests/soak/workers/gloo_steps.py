"""A training loop of torch: a step is an all_reduce over gloo. It ends when the file STOP exists."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from world import PACE_S, STOP, World


def main() -> int:
    world = World()
    dist.init_process_group("gloo")
    step = 0
    while True:
        begun = time.monotonic()
        total = torch.tensor([1.0, float(STOP.exists())])
        dist.all_reduce(total)
        if int(total[0]) != world.size:
            sys.exit(f"the sum of {world.size} ranks is {total[0]}")
        world.write_step(step, begun)
        if total[1]:
            world.finish()
            dist.destroy_process_group()
            return 0
        step += 1
        time.sleep(PACE_S)


if __name__ == "__main__":
    sys.exit(main())
