"""Acts as long as it runs, whatever becomes of its round, and asks each time whether it holds: no torch, no peers.

Each act is a line in the file ``acts``: when (the machine's clock), the pid, whether the round held.
"""

import json
import os
import sys
import time
from pathlib import Path

from rdzv_plugins.clock import now
from rdzv_plugins.worker import round_holds

stop = Path(sys.argv[1])
assert "torch" not in sys.modules
names = "RANK WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT"
sys.stdout.write(json.dumps({name: os.environ[name] for name in names.split()} | {"PID": os.getpid()}) + "\n")
sys.stdout.flush()
acts = os.open("acts", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
while not stop.exists():
    holds = round_holds()
    os.write(acts, f"{now()} {os.getpid()} {holds:d}\n".encode())
    time.sleep(0.01)
