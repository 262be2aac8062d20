"""One of two workers: what one of them sets without an answer, does the other see after a collective of gloo?

No store takes part in the collective. Prints as JSON how often it did not, for each kind of question.
Arguments: own rank, the file where gloo meets, port of the store, its Unix socket or nothing, whether writes wait until
they are done (1 or 0), rounds of each kind, kinds.
"""

import json
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from rdzv_plugins.kvstore.tcpstore.unix_transport import move, open_sockets
from rdzv_plugins.torch_bridge.answered_writes import answer_writes

_VALUE = "v" * 40


class Worker:
    """The kinds of questions: each method is a round of one, and returns whether this worker has missed something."""

    def __init__(self, rank: int, store: TCPStore) -> None:
        self._sets = rank == 0
        self._rank, self._store = rank, store
        self._token = torch.zeros(1)

    def meet(self) -> None:
        dist.all_reduce(self._token)

    def check(self, turn: int) -> bool:
        """A new key."""
        if self._sets:
            self._store.set(f"check/{turn}", _VALUE)
        self.meet()
        return not self._sets and not self._store.check([f"check/{turn}"])

    def both(self, turn: int) -> bool:
        """Each sets a key and asks for the other's."""
        self._store.set(f"both/{self._rank}/{turn}", _VALUE)
        self.meet()
        return not self._store.check([f"both/{1 - self._rank}/{turn}"])

    def get(self, turn: int) -> bool:
        """A key that is overwritten: everybody has read its old value, so a proxy may hold it."""
        if self._sets:
            self._store.set(f"get/{turn}", "old")
        self._store.get(f"get/{turn}")
        self.meet()
        if self._sets:
            self._store.set(f"get/{turn}", "new")
        self.meet()
        return not self._sets and self._store.get(f"get/{turn}") != b"new"

    def overwritten(self, turn: int) -> bool:
        """The same key again and again."""
        if self._sets:
            self._store.set("overwritten", str(turn))
        self.meet()
        seen = self._store.get("overwritten")
        self.meet()
        return not self._sets and seen != str(turn).encode()

    def num_keys(self, turn: int) -> bool:
        """The number of keys."""
        self.meet()
        before = self._store.num_keys()
        self.meet()
        if self._sets:
            self._store.set(f"num_keys/{turn}", _VALUE)
        self.meet()
        return not self._sets and self._store.num_keys() != before + 1

    def delete(self, turn: int) -> bool:
        """A key that is deleted at once."""
        if self._sets:
            self._store.set(f"delete/{turn}", _VALUE)
        self.meet()
        return not self._sets and not self._store.delete_key(f"delete/{turn}")

    def add(self, turn: int) -> bool:
        """A number that is counted on."""
        if self._sets:
            self._store.set(f"add/{turn}", "10")
        self.meet()
        return not self._sets and self._store.add(f"add/{turn}", 1) != 11

    def large(self, turn: int) -> bool:
        """A value of 1 MiB."""
        if self._sets:
            self._store.set(f"large/{turn % 10}/{turn}", "v" * (1 << 20))
        self.meet()
        missed = not self._sets and not self._store.check([f"large/{turn % 10}/{turn}"])
        self.meet()
        if self._sets:
            self._store.delete_key(f"large/{turn % 10}/{turn}")
        return missed


def main(rank: int, meeting: str, port: int, unix: str, answered: bool, rounds: int, kinds: list[str]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    before = open_sockets()
    store = TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=timedelta(seconds=150))
    if unix:
        move(store, unix, before)
    if answered:
        answer_writes(port)
    worker = Worker(rank, store)
    missed = {}
    for kind in kinds:
        ask: Callable[[int], bool] = getattr(worker, kind)
        missed[kind] = sum(ask(turn) for turn in range(rounds))
        worker.meet()
        store.add("done", 1)  # an answer: the next kind begins with nothing on its way
        worker.meet()
    dist.destroy_process_group()
    print(json.dumps(missed))


if __name__ == "__main__":
    rank, meeting, port, unix, answered, rounds, *kinds = sys.argv[1:]
    main(int(rank), meeting, int(port), unix, answered == "1", int(rounds), kinds)
