"""A worker without torch, which is what takes time: it meets the other ranks at their store, reports, and runs on.

The report is one line of JSON. Arguments: the file STOP, which makes it end; and if a rank is to fail, that RANK and
its exit CODE: it reports and fails at once.
"""

import json
import os
import socket
import struct
import sys
import time
from pathlib import Path

from rdzv_plugins.kvstore.tcpstore.wire import SET, greet, wait_and_get

NAMES = (
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT "
    "TORCHELASTIC_RUN_ID"
)


def meet() -> list[str]:
    """What the ranks of the round have written into their store, by rank. Waits for all of them."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as connection:
        greet(connection)
        texts = f"/conformance/rank{rank}".encode(), f"written by pid {os.getpid()}".encode()
        connection.sendall(struct.pack("=B", SET) + b"".join(struct.pack("=Q", len(text)) + text for text in texts))
        return [wait_and_get(connection, f"conformance/rank{each}").decode() for each in range(world)]


stop, *failing = sys.argv[1:]
fails = failing[:1] == [os.environ["RANK"]]
report = {name: os.environ[name] for name in NAMES.split()} | {"PID": os.getpid(), "MET": [] if fails else meet()}
sys.stdout.write(json.dumps(report) + "\n")
sys.stdout.flush()
if fails:
    print(f"the last words of pid {os.getpid()}", file=sys.stderr, flush=True)
    sys.exit(int(failing[1]))
while not Path(stop).exists():
    time.sleep(0.05)
