"""One of several processes on a store, by torch's own client; prints what it saw as JSON.

Arguments: port, own number, number of processes.
"""

import json
import sys
from datetime import timedelta

from torch.distributed import TCPStore

ROUNDS = 50


def increment(store: TCPStore, key: str, rank: int, turn: int) -> None:
    """Add 1 to the number at the front of a value by compare_set alone, retried until it is ours that is stored."""
    value = store.get(key).decode()
    while True:
        # compare_set answers the value there is now, so ours has to be one that nobody else writes
        desired = f"{int(value.split()[0]) + 1} by {rank}, turn {turn}"
        now = store.compare_set(key, value, desired).decode()
        if now == desired:
            return
        value = now


def main(port: int, rank: int, size: int) -> None:
    store = TCPStore("127.0.0.1", port, world_size=size, timeout=timedelta(seconds=150))
    store.set(f"hello/{rank}", str(rank))
    everyone = [f"hello/{other}" for other in range(size)]
    store.wait(everyone)
    greetings = [value.decode() for value in store.multi_get(everyone)]
    tickets = [store.add("tickets", 1) for _ in range(ROUNDS)]
    store.append("log", f"{rank},")
    store.compare_set("cas", "", "0")
    for turn in range(ROUNDS):
        increment(store, "cas", rank, turn)
    for item in range(ROUNDS):
        store.queue_push("work", f"{rank}:{item}")
    items = [store.queue_pop("work").decode() for _ in range(ROUNDS)]  # never empty: each pushed as many before
    store.barrier("done", size)
    end = {
        "tickets": store.add("tickets", 0),
        "cas": int(store.get("cas").split()[0]),
        "log": sorted(store.get("log").decode().split(",")),
        "left": store.queue_len("work"),
        "keys": sorted(store.list_keys()),
    }
    print(json.dumps({"greetings": greetings, "tickets": tickets, "items": items, "end": end}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
