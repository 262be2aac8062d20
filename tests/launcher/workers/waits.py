"""The ranks in DONE (comma-separated) are done at once, the others when the file STOP exists."""

import os
import sys
import time
from pathlib import Path

stop, done = Path(sys.argv[1]), sys.argv[2].split(",")
print(f"rank {os.environ['RANK']} begins", flush=True)
while os.environ["RANK"] not in done and not stop.exists():
    time.sleep(0.05)
