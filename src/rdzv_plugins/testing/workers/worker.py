"""A worker of one rank: it meets the others at the store of its round, and reports in one line of JSON.

It runs on until the file STOP is there, without torch, which is what takes time. ``STOP RANK CODE``: that rank reports
and fails at once. ``gloo``: torch adds up the ranks over gloo, and the worker ends. ``crash``: the same, after a round
without torch, in which rank 1 kills itself when all have met.
"""

import gc
import json
import os
import signal
import socket
import struct
import sys
import time
from datetime import timedelta
from pathlib import Path

from rdzv_plugins.kvstore.tcpstore.wire import SET, greet, wait_and_get

LIMIT = timedelta(seconds=90)
NAMES = (
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT "
    "TORCHELASTIC_RUN_ID"
)
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
KEYS = [f"conformance/rank{each}" for each in range(WORLD)]
MINE = f"written by pid {os.getpid()}"


def report(**found: object) -> None:
    """Print the report at once and as a whole."""
    facts = {name: os.environ[name] for name in NAMES.split()} | {"PID": os.getpid()}
    sys.stdout.write(json.dumps(facts | found) + "\n")
    sys.stdout.flush()


def meet(keys: list[str] = KEYS) -> list[str]:
    """What the ranks of the round have written into their store, by rank. Waits for all of them."""
    with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as connection:
        greet(connection)
        texts = f"/{keys[RANK]}".encode(), MINE.encode()
        connection.sendall(struct.pack("=B", SET) + b"".join(struct.pack("=Q", len(text)) + text for text in texts))
        return [wait_and_get(connection, key).decode() for key in keys]


def add_up() -> None:
    """Look in the store for what an earlier round has written, and add up the ranks."""
    gc.disable()  # half of the time of importing torch is spent on looking for garbage that is not there
    import torch
    import torch.distributed as dist

    gc.freeze()
    gc.enable()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=LIMIT)
    if store.check(KEYS[RANK : RANK + 1]):  # nobody else writes it: in a store of this round it cannot be there yet
        report(STALE=store.get(KEYS[RANK]).decode())
        sys.exit(21)
    store.set(KEYS[RANK], MINE)
    dist.init_process_group("gloo", timeout=LIMIT)
    total = torch.tensor([RANK + 1])
    dist.all_reduce(total)
    report(SUM=total.item(), MET=[store.get(key).decode() for key in KEYS])
    dist.barrier()
    dist.destroy_process_group()


def run_on(stop: Path) -> None:
    """Until that file is there, or somebody ends this process."""
    while not stop.exists():
        time.sleep(0.05)


how, *failing = sys.argv[1:]
crashed = Path("crashed")
if how == "crash" and not crashed.exists():
    report(MET=meet())
    meet([f"{key}/reported" for key in KEYS])  # the end of one ends the others
    if RANK == 1:
        crashed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    run_on(Path("never"))
elif how in ("crash", "gloo"):
    add_up()
elif failing[:1] == [os.environ["RANK"]]:
    report()
    print(f"the last words of pid {os.getpid()}", file=sys.stderr, flush=True)
    sys.exit(int(failing[1]))
else:
    report(MET=meet())
    run_on(Path(how))
