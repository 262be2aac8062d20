"""Stock clients of torch that go on while somebody else attacks the server.

For each line ``PORT CLIENTS ROUNDS`` of its input: connects, every client does its rounds of set, get, add, wait and
compare_set and checks each answer; then prints ``done``.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from torch.distributed import TCPStore


def run(store: TCPStore, name: str, rounds: int) -> None:
    for number in range(rounds):
        value = f"{number} " * 100
        store.set(f"{name}/value", value)
        assert store.get(f"{name}/value").decode() == value
        assert store.add(f"{name}/count", 2) == 2 * (number + 1)
        store.wait([f"{name}/value", f"{name}/count"], timedelta(seconds=120))
        assert store.compare_set(f"{name}/once", "", "first") == b"first"
        assert store.check([f"{name}/missing"]) is False


def main() -> None:
    for line in sys.stdin:
        port, clients, rounds = map(int, line.split())
        stores = [TCPStore("127.0.0.1", port, wait_for_workers=False) for _ in range(clients)]
        with ThreadPoolExecutor(clients) as pool:
            for job in [pool.submit(run, store, f"torch/{i}", rounds) for i, store in enumerate(stores)]:
                job.result()
        print("done", flush=True)


if __name__ == "__main__":
    main()
