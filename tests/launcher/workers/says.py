"""No torch: says in one line of JSON what it was given, runs until the file STOP exists, and ends with CODE."""

import json
import os
import sys
import time
from pathlib import Path

stop, code = sys.argv[1:]
names = "RANK WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_RUN_ID"
report = {name: os.environ[name] for name in names.split()} | {"PID": os.getpid()}
report |= {name: os.environ[name] for name in ("RDZV_ROOT_ADDR", "RDZV_ROOT_PORT") if name in os.environ}
sys.stderr.write("here\n")  # in one piece
sys.stdout.write(json.dumps(report) + "\n")
sys.stdout.flush()
while not Path(stop).exists():
    time.sleep(0.05)
sys.exit(int(code))
