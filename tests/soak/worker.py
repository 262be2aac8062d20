"""A training loop without torch: a step is a barrier of all ranks in their store. It ends when the file STOP exists.

Each worker writes down what it does: a record is a line of JSON in ``$SOAK_DIR/records/<node>.jsonl``, with the
machine's one monotonic clock.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

from rdzv_plugins.errors import StoreLost
from rdzv_plugins.kvstore.sockets.reach import CancelToken
from rdzv_plugins.kvstore.tcpstore import wire
from rdzv_plugins.kvstore.tcpstore.plain_client import PlainClient
from rdzv_plugins.worker import round_holds

DIRECTORY = Path(os.environ["SOAK_DIR"])
NODE = os.environ["SOAK_NODE"]
STOP = DIRECTORY / "stop"
PACE_S = 0.1
"""Between two steps: the agents and their faults are what is tested, not this loop."""
LONG_S = 1_000_000.0
"""In their store they wait for as long as it takes."""
SAVING_S = 6.0
"""A checkpoint is written beside the steps, one after the other, and takes so long."""


class World:
    """The workers that meet in one store."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._records = os.open(DIRECTORY / "records" / f"{NODE}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._who = {"node": NODE, "agent": os.environ["SOAK_AGENT"], "pid": os.getpid(), "rank": self.rank}
        self._who["round"] = int(os.environ["RDZV_ROUND"])
        self.store = _store()
        self._write("joined", size=self.size)
        if self.store.add("soak/joined", 1) == self.size:
            self.store.set("soak/all", "")
        self.store.get("soak/all")
        self._done = threading.Event()
        # as with torch's async_save: a worker that fails ends when it has written what it was writing
        threading.Thread(target=self._save, name="saving").start()

    def finish(self) -> None:
        """All is done, and nothing more is to be written."""
        self._done.set()

    def write_step(self, step: int, begun: float) -> None:
        """A step was done that had begun at ``begun``; this is what a worker that is not to act must not get to."""
        self._write("step", step=step, t0=begun)

    def _write(self, what: str, **more: object) -> None:
        """One write, so that lines of several workers never mix."""
        record = {"what": what, "t": time.monotonic()} | self._who | more
        os.write(self._records, (json.dumps(record) + "\n").encode())

    def _save(self) -> None:
        main = threading.main_thread()
        while main.is_alive():
            begun = time.monotonic()
            if self._done.wait(SAVING_S):
                return
            if round_holds():  # the last moment before others see it
                self._write("saved", t0=begun)


def _store() -> PlainClient:
    connection = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 60)
    wire.greet(connection)
    return PlainClient(connection, prefix="", timeout=LONG_S, answer=None, interruption=CancelToken())


def main() -> int:
    world = World()
    step = 0
    while True:
        begun = time.monotonic()
        if world.store.add(f"soak/step/{step}", 1) == world.size:
            world.store.set(f"soak/go/{step}", "stop" if STOP.exists() else "go")  # one decides for all
        verdict = world.store.get(f"soak/go/{step}")
        world.write_step(step, begun)
        if verdict == b"stop":
            world.finish()
            return 0
        if world.rank == 0 and step:  # all are in this step, so nobody asks for the last one any more
            world.store.delete_key(f"soak/step/{step - 1}")
            world.store.delete_key(f"soak/go/{step - 1}")
        step += 1
        time.sleep(PACE_S)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, StoreLost) as error:
        sys.exit(f"the store has gone: {error}")
