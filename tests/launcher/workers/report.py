"""Joins the gloo group, adds up the ranks, and says in one line of JSON what it was given.

Modes: ``ok``; ``crash RANK CODE`` fails in the first round only; ``wait PATH`` runs until PATH exists, and
``fail_after PATH RANK CODE`` then fails.
"""

import json
import os
import sys
import time
from pathlib import Path

import quick_torch  # noqa: F401
import torch
import torch.distributed as dist

mode, *args = sys.argv[1:] or ["ok"]
dist.init_process_group("gloo")
total = torch.tensor([float(os.environ["RANK"])])
dist.all_reduce(total)
names = (
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME "
    "MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_RUN_ID"
)
report = {name: os.environ[name] for name in names.split()} | {"SUM": total.item(), "PID": os.getpid()}
sys.stdout.write(json.dumps(report) + "\n")
sys.stdout.flush()
dist.barrier()
rank = int(os.environ["RANK"])
if mode == "crash" and rank == int(args[0]) and not Path("crashed").exists():
    Path("crashed").touch()
    sys.exit(int(args[1]))
if mode == "fail_after":
    print(f"past the barrier of {os.environ['WORLD_SIZE']}", flush=True)
    while not Path(args[0]).exists():
        time.sleep(0.05)
    if rank == int(args[1]):
        sys.exit(int(args[2]))
    time.sleep(600)
if mode == "wait":
    while not Path(args[0]).exists():
        time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
