"""Makes the pictures of ``rdzv top`` in docs/guides/top/: ``python docs/screenshots.py``.

They are what Textual draws of an example job, so that they say the same on every machine: node 2 of four was lost a
moment ago, and the others go on.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

from rdzv_launcher.tools.top.screen import LogPage, Screen
from rdzv_launcher.tools.top.watching import EndpointWatch
from rdzv_plugins.interfaces import Request

PICTURES = Path(__file__).parent / "guides" / "top"
ENDPOINT = "login:29400"
GIB = 2**30


def node(rank: int, host: str, state: str = "works", restarts: int = 0) -> dict[str, Any]:
    """One of the example."""
    workers = [
        {"rank": 2 * rank + local, "local_rank": local, "pid": 4100 + 2 * rank + local, "state": "R", "cpu_s": 0.0,
         "memory_bytes": int((11.5 + local / 10) * GIB), "cpu_percent": 99.0 + 2 * local}
        for local in range(2)
    ]  # fmt: skip
    there = state == "works"
    return {"rank": rank, "host": host, "pid": 812, "state": state, "round": 4 if there else 0, "heard_s": 1.0,
            "restarts": restarts, "stage": "working", "problem": "", "workers": workers if there else []}  # fmt: skip


def job() -> dict[str, Any]:
    """The example."""
    lost = "gpu-02 (pid 812) was lost: its host has closed the connection, and refuses another"
    told = ["gpu-02 (pid 812) is gone", f"round 3 is over: {lost}", "round 4 is complete: 3 nodes"]
    found = {"number": 4, "state": "complete", "reason": "", "progress": "", "members": 4, "leader": "gpu-00 (pid 812)"}
    nodes = [node(0, "gpu-00"), node(1, "gpu-01", restarts=1), node(2, "gpu-03")]
    nodes.append({**node(3, "gpu-04", "spare"), "rank": None})
    return {"run": "digits", "problem": "", "round": found, "last_end": f"round 3 is over: {lost}", "nodes": nodes,
            "waits": [], "events": [{"at": _AT, "text": text} for text in told], "events_ever": len(told)}  # fmt: skip


_AT = 1_700_000_000.0


class Example:
    """In place of what is watched."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        self._jobs = list(jobs)

    def data(self) -> dict[str, Any]:
        """As ``EndpointWatch.data``."""
        return {"endpoint": ENDPOINT, "problem": "", "jobs": self._jobs, "left_out": 0}


def other() -> dict[str, Any]:
    """A second job at the same server, for which a node is missing."""
    found = {"number": 0, "state": "none", "reason": "", "progress": "1 of 2 nodes have joined; missing: node rank 1",
             "members": 1, "leader": "cpu-07 (pid 377)"}  # fmt: skip
    waiting = {**node(0, "cpu-07", "waits"), "rank": None}
    return {**job(), "run": "tune", "round": found, "last_end": "", "nodes": [waiting], "events": [], "events_ever": 0}


def log(rank: int) -> str:
    """The last lines of a worker."""
    lines = [f"  epoch 3  step {step}  loss {2.1 - step / 4000:.4f}" for step in range(1180, 1200)]
    return "\n".join(["stdout (/logs/digits_x3k2/attempt_0/0/stdout.log):", *lines, "stderr: nothing yet"])


async def picture(*jobs: dict[str, Any], with_log: bool = False) -> str:
    """Draw them at 80 columns, and return the SVG."""
    request = Request(backend="", run_id="digits", endpoint=ENDPOINT, min_nodes=1, max_nodes=1, nproc_per_node=0)
    screen = Screen(cast(EndpointWatch, Example(*jobs)), request)
    whole = ["Last end", jobs[-1]["run"], *(each["host"] for each in jobs[0]["nodes"]), "(local 1", "is gone"]
    wanted = ["Previous", "stderr:"] if with_log else whole
    drawn = before = ""
    async with screen.run_test(size=(80, 24)) as pilot:
        if with_log:
            first = jobs[0]["nodes"][0]
            await screen.push_screen(LogPage(first["host"], first["workers"], log))
        # parts of it come one by one
        while drawn != before or not all(each.replace(" ", "&#160;") in drawn for each in wanted):
            await pilot.pause(0.05)
            before, drawn = drawn, screen.export_screenshot(title="rdzv top")
    return re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # a page is to load nothing from elsewhere


def pictures() -> Iterator[tuple[Path, Coroutine[Any, Any, str]]]:
    """Each with its file."""
    yield PICTURES / "job.svg", picture(job())
    yield PICTURES / "jobs.svg", picture(job(), other())
    yield PICTURES / "log.svg", picture(job(), with_log=True)


def main() -> None:
    """Write the pictures."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    PICTURES.mkdir(exist_ok=True)
    for path, drawing in pictures():
        text = asyncio.run(drawing)
        path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


if __name__ == "__main__":
    main()
