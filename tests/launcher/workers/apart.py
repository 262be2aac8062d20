"""No process group: rank 1 fails once both run, rank 0 would never notice."""

import os
import sys
import time
from pathlib import Path

rank = int(os.environ["RANK"])
here, other = Path(f"rank{rank}"), Path(f"rank{1 - rank}")
here.touch()
while not other.exists():
    time.sleep(0.05)
if rank == 1:
    sys.exit(9)
print("I go on", flush=True)
time.sleep(600)
