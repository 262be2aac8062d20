"""Fails as it is told, once all workers of the round have begun: no torch.

Arguments: a directory, the number of workers, and what happens in each round: RANK:HOW, or "-" for a round that ends
well. HOW is an exit code, ``-N`` for signal N, or the name of an exception. Each worker counts its own starts.
"""

import builtins
import os
import sys
import time
from pathlib import Path

directory, world, *plan = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3].split(",")
rank = int(os.environ["RANK"])
number = next(number for number in range(1000) if not (directory / f"start-{number}-{rank}").exists())
(directory / f"start-{number}-{rank}").touch()
sys.stdout.write(f"rank {rank} start {number} restart {os.environ['TORCHELASTIC_RESTART_COUNT']}\n")
sys.stdout.flush()
while not all((directory / f"start-{number}-{each}").exists() for each in range(world)):
    time.sleep(0.02)
told = plan[min(number, len(plan) - 1)]
if told == "-":
    sys.exit(0)
who, _, how = told.partition(":")
if rank != int(who):
    time.sleep(600)
sys.stderr.write(f"rank {rank} says its last words\n")
sys.stderr.flush()
if how.lstrip("-").isdecimal():
    if int(how) < 0:
        os.kill(os.getpid(), -int(how))
    sys.exit(int(how))
raise getattr(builtins, how)("on purpose")
