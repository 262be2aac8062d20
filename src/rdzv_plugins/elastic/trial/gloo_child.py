"""A process with torch, which the agent does without: joins one other node in a gloo process group, and measures.

Reads one line of JSON per request, ``{"host", "port", "prefix", "rank", "timeout"}``, and answers each with one:
``{"rate": BYTES_PER_SECOND}`` or ``{"problem": SENTENCE}``. The very first line is ``{"ready": true}``, once torch is
imported. Exits when its standard input ends, whatever it is doing.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import time
from datetime import timedelta
from typing import Any

from rdzv_plugins.threads import OwnThread

_NUMBERS = 1 << 19
_TIMES = 4


def main() -> None:
    """Run until the end of standard input."""
    asked: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    OwnThread(target=_read, name="asked", args=(asked,), on_error=lambda _: os._exit(1)).start()
    try:
        import torch.distributed  # noqa: F401
    except Exception as error:
        _say({"problem": f"torch cannot be imported: {error}"})
        return
    _say({"ready": True})
    while True:
        request = asked.get()
        try:
            _say({"rate": _measure(**request)})
        except Exception as error:
            _say({"problem": f"gloo: {str(error).splitlines()[0] if str(error) else type(error).__name__}"})


def _read(asked: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        asked.put(json.loads(line))
    os._exit(0)


def _measure(host: str, port: int, prefix: str, rank: int, timeout: float) -> float:
    """Bytes per second of the quickest all-reduce of two nodes; each result is verified."""
    import torch
    import torch.distributed as dist

    limit = timedelta(seconds=timeout)
    store = dist.PrefixStore(prefix, dist.TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False))
    group = dist.ProcessGroupGloo(store, rank, 2, limit)
    numbers = torch.arange(_NUMBERS, dtype=torch.int64)
    best = float("inf")
    for turn in range(_TIMES):
        tensor = numbers * (rank + 1) + turn
        began = time.perf_counter()
        group.allreduce([tensor]).wait()
        best = min(best, time.perf_counter() - began)
        if int((tensor != numbers * 3 + 2 * turn).sum()):
            raise RuntimeError("an all-reduce came to a wrong sum")
    return _NUMBERS * 8 / best


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
