"""How often a worker does not see what another one has set, through each store, beside torch's own in the same run.

``set`` has no answer in torch's format. A rank sets a key, all ranks meet in a collective of gloo, and another rank
asks for the key at once: no store promises that it is there, but scripts may rely on what torch's server nearly always
does. Run as a program: ``PYTHONPATH=tests python -m kits.wire.visibility --rounds=2000 --busy=1``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kits.wire.processes import last_line, outputs, spawned, started

STORES = (
    "torch",
    "parallel",
    "parallel, 4 threads",
    "tiered",
    "tiered, unix",
    "tiered, bare",
    "tiered, one node, bare",
)
"""Workers behind a proxy wait until their writes are done; `bare`: torch's client as it is."""
KINDS = ("check", "both", "get", "overwritten", "num_keys", "delete", "add")
_ALL = (*KINDS, "large")


def measure(store: str, rounds: int, kinds: Sequence[str] = KINDS) -> dict[str, int]:
    """Misses of both workers in so many rounds of each kind."""
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        places = stack.enter_context(_served(store))
        unix = [place[1] if store.endswith("unix") else "" for place in places]
        answered = store.startswith("tiered") and not store.endswith("bare")
        given = [(rank, Path(folder) / "gloo", places[rank][0], unix[rank], int(answered)) for rank in range(2)]
        arguments = [(*each, rounds, *kinds) for each in given]
        workers = stack.enter_context(started("visible_worker.py", arguments))
        reports = [json.loads(last_line(text)) for text in outputs(workers, 3600)]
    return {kind: sum(report[kind] for report in reports) for kind in kinds}


@contextmanager
def _served(store: str) -> Iterator[list[tuple[int, str]]]:
    """Port and Unix socket, for each worker."""
    with ExitStack() as stack:

        def start(*arguments: object) -> int:
            (process,) = stack.enter_context(started("visible_server.py", [arguments]))
            assert process.stdout is not None
            return int(process.stdout.readline())

        if store == "torch":
            yield [(start("torch"), "")] * 2
            return
        root = start("parallel", 4 if store.endswith("4 threads") else 1)
        if store.startswith("parallel"):
            yield [(root, "")] * 2
            return
        places = []
        for _ in range(1 if "one node" in store else 2):
            path = f"@visible-{uuid.uuid4().hex}"
            places.append((start("proxy", root, path), path))
        yield [places[0], places[-1]]


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that only compute."""
    with spawned([[sys.executable, "-c", "while True: pass"]] * count):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--busy", type=int, default=0, help="processes that only compute, beside")
    parser.add_argument("--stores", nargs="+", default=STORES, choices=STORES)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=_ALL)
    given = parser.parse_args()
    print(f"misses in {given.rounds} rounds; {given.busy} busy loops, load {os.getloadavg()[0]:.1f}")
    print(f"{'':23}" + "".join(f"{kind:>13}" for kind in given.kinds), flush=True)
    with busy(given.busy):
        for _ in range(given.runs):
            for store in given.stores:
                missed = measure(store, given.rounds, given.kinds)
                print(f"{store:23}" + "".join(f"{missed[kind]:13}" for kind in given.kinds), flush=True)


if __name__ == "__main__":
    main()
