"""Two nodes by two workers, no process group: rank 2 fails, rank 3 is slow to stop, rank 0 fails because of rank 2."""

import os
import signal
import sys
import time
from pathlib import Path

rank = int(os.environ["RANK"])
Path(f"rank{rank}").write_text(str(os.getpid()))
signal.signal(signal.SIGTERM, signal.SIG_IGN if rank == 3 else signal.SIG_DFL)
while not all(Path(f"rank{other}").exists() and Path(f"rank{other}").read_text() for other in range(4)):
    time.sleep(0.01)
if rank == 2:
    print("rank 2 says its last words", file=sys.stderr, flush=True)
    sys.exit(9)
if rank == 0:
    status = Path(f"/proc/{Path('rank2').read_text()}/status")
    while status.exists() and "State:\tZ" not in status.read_text():
        time.sleep(0.01)
    time.sleep(1)  # a peer's failure shows when the next collective does
    sys.exit(5)
time.sleep(5 if rank == 3 else 600)  # until then the agent of rank 2 is busy stopping it
