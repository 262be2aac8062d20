"""trains.py for notices: steps over gloo until the file STOP exists; after the step of a notice each rank saves.

Arguments: STOP, seconds that a step takes, and "handles", by which it takes SIGUSR2, too. What a rank saves is the file
``saved-ROUND-RANK``.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import quick_torch  # noqa: F401
import torch
import torch.distributed as dist

from rdzv_plugins.worker import notice, saved

stop, seconds, signals = Path(sys.argv[1]), float(sys.argv[2]), []
if "handles" in sys.argv:
    signal.signal(signal.SIGUSR2, lambda number, frame: signals.append(number))
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
kept = sorted(Path().glob("saved-*-0"), key=lambda each: int(each.name.split("-")[1]))
state = torch.tensor([json.loads(kept[-1].read_text())["step"]] * 2 if rank == 0 and kept else [0, 0])
dist.broadcast(state, 0)
step, total = state.tolist()
names = "RANK WORLD_SIZE GROUP_RANK MASTER_PORT TORCHELASTIC_RESTART_COUNT"
report = {name: os.environ[name] for name in names.split()} | {"PID": os.getpid(), "FROM": step}
sys.stdout.write(json.dumps(report) + "\n")
sys.stdout.flush()
seen = 0
while seen < world:
    values = torch.tensor([1, stop.exists()])
    dist.all_reduce(values)
    added, seen = values.tolist()
    step, total = step + 1, total + added // world
    told = notice(step=step)
    if told is not None and told.step == step:
        while "handles" in sys.argv and not signals:
            time.sleep(0.01)
        what = {
            "step": step,
            "total": total,
            "round": told.round,
            "node": told.node,
            "reason": told.reason,
            "signals": signals,
        }
        path = Path(f"saved-{told.round}-{rank}")
        path.with_suffix(".part").write_text(json.dumps(what | {"left": told.deadline - time.monotonic()}))
        path.with_suffix(".part").rename(path)
        saved()
    time.sleep(seconds)
dist.barrier()
time.sleep(0.1)
dist.destroy_process_group()
