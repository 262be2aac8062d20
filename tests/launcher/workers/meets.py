"""No torch: all ranks meet in the workers' store, and stay there until the file STOP exists. Without a store: code 7.

Each sets a key, waits for those of all ranks, reads them, and adds one to a counter that has to reach their number.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from kits.wire.wire_client import WAIT, Closed, Raw, add, get, keyed, set_

NAMES = "RANK WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT RDZV_ROOT_ADDR RDZV_ROOT_PORT"


def meet(client: Raw, rank: int, world: int) -> list[str]:
    """What the ranks have said, in order of rank."""
    keys = [b"/meets/%d" % each for each in range(world)]
    client.send(set_(keys[rank], b"rank %d" % rank))
    values = []
    for key in keys:
        assert client.ask(keyed(WAIT, [key]), 1) == b"\0"
        client.send(get(key))
        values.append(client.receive_text().decode())
    client.send(add(b"/count", 1))
    if client.receive_i64() == world:
        client.send(set_(b"/all", b""))
    assert client.ask(keyed(WAIT, [b"/all"]), 1) == b"\0"
    return values


def main(stop: Path) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with Raw(int(os.environ["MASTER_PORT"])) as client:
        client.socket.settimeout(120)  # it waits for others to start
        try:
            values = meet(client, rank, world)
            report = {name: os.environ.get(name, "") for name in NAMES.split()} | {"PID": os.getpid(), "MET": values}
            sys.stdout.write(json.dumps(report) + "\n")
            sys.stdout.flush()
            while not stop.exists():
                client.fence()
                time.sleep(0.05)
        except Closed:
            print(f"rank {rank} has no store any more", file=sys.stderr, flush=True)
            sys.exit(7)


main(Path(sys.argv[1]))
