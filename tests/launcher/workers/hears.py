"""Says every form in which a notice comes, and then waits. Arguments: STOP, and "says", by which it calls ``saved``.

With "handles" it takes SIGUSR2, too. Imports no torch.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from rdzv_plugins.worker import notice, saved

stop, how = Path(sys.argv[1]), sys.argv[2]
rank, signals = os.environ["RANK"], []
if "handles" in sys.argv:
    signal.signal(signal.SIGUSR2, lambda number, frame: signals.append(number))
file = Path(os.environ["RDZV_NOTICE_FILE"])
assert notice() is None
assert not file.exists()
sys.stdout.write(f"rank {rank} begins\n")
sys.stdout.flush()
while notice() is None and not stop.exists():
    time.sleep(0.005)
told = notice()
if told is not None:
    while "handles" in sys.argv and not signals:
        time.sleep(0.005)
    fields = {name: getattr(told, name) for name in ("reason", "node", "round", "step")}
    heard = {"RANK": rank, "notice": fields, "file": json.loads(file.read_text()), "signals": signals}
    heard["left"] = told.deadline - time.monotonic()
    sys.stdout.write(json.dumps(heard) + "\n")
    sys.stdout.flush()
if how == "says":
    saved()
while not stop.exists() and not Path(f"{stop}-{rank}").exists():
    time.sleep(0.02)
