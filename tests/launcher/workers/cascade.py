"""Two nodes by two workers, no process group: rank 2 fails, rank 0 fails because of it, rank 3 is slow to stop."""

import os
import signal
import sys
import time
from pathlib import Path


def wait_end_of(other: int) -> None:
    """Until that rank has ended, whether its agent knows or not."""
    status = Path(f"/proc/{Path(f'rank{other}').read_text()}/status")
    try:
        while "State:\tZ" not in status.read_text():
            time.sleep(0.01)
    except OSError:  # there is no such process any more
        pass


rank = int(os.environ["RANK"])
told = Path("told")  # that it is to stop: the agent of rank 2 knows of its end
signal.signal(signal.SIGTERM, (lambda *_: told.touch()) if rank == 3 else signal.SIG_DFL)
Path(f"rank{rank}").write_text(str(os.getpid()))
while not all(Path(f"rank{other}").exists() and Path(f"rank{other}").read_text() for other in range(4)):
    time.sleep(0.01)
if rank == 2:
    print("rank 2 says its last words", file=sys.stderr, flush=True)
    sys.exit(9)
if rank == 0:
    while not told.exists():
        time.sleep(0.01)
    time.sleep(1)  # a peer's failure shows when the next collective does
    sys.exit(5)
if rank == 3:
    wait_end_of(0)
    wait_end_of(1)  # stopped for what has become of rank 0
    time.sleep(3)  # the agent of rank 2 is busy stopping this one, while that of rank 0 finds a failure of its own
    sys.exit(0)
time.sleep(600)
