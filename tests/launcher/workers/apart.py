"""No process group: rank 1 fails once rank 0 has said that it goes on, which would never notice."""

import os
import sys
import time
from pathlib import Path

rank = int(os.environ["RANK"])
said = Path("rank0-goes-on")
if rank == 1:
    while not said.exists():
        time.sleep(0.05)
    sys.exit(9)
print("I go on", flush=True)
said.touch()
time.sleep(600)
