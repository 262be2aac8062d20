"""What ``rdzv top`` costs the server at which a job meets: processor time without a view of the job, and with one.

``PYTHONPATH=tests python -m kits.launcher.watching_cost [--nodes=1024] [--workers=8] [--seconds=60] [--processes=16]``

The server is an ``rdzv serve`` with one loop. The nodes are the handlers that agents have, many to a process, and each
reports that many workers. The view is a real ``rdzv top`` on a terminal, which draws the job anew every second.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from msgspec import structs

from kits import TESTS
from rdzv_launcher.bench.method.readings import exact_cpu_seconds
from rdzv_launcher.bench.processes.child import Child
from rdzv_plugins.assemble.create import create_handler, prepare
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.native.limits import raise_file_limit
from rdzv_plugins.questions import VITALS, Question, UnknownKind
from rdzv_plugins.testing.agents.processes import wait_until
from rdzv_plugins.testing.harness import free_port

_STACK_BYTES = 256 * 1024
_LIMIT_S = 300.0
_FIRST_PID = 1_000_000


def measure(nodes: int, workers: int, seconds: float, processes: int) -> dict[str, Any]:
    """Shares of one core: in that many seconds ``without`` the view, and in as many ``with`` it.

    ``shown``: whether the view has the whole job and was drawing.
    """
    port = free_port()
    with ExitStack() as running:
        task = {"nodes": nodes, "workers": workers, "endpoint": f"127.0.0.1:{port}"}
        serve = [sys.executable, "-m", "rdzv_launcher.tools", "serve", f"--rdzv-endpoint={task['endpoint']}"]
        server = running.enter_context(Child("rdzv serve", serve, end_limit_s=0))
        wait_until(partial(_listens, port), 60, lambda: "rdzv serve does not listen")
        holders = []
        for first in range(min(processes, nodes)):
            mine = json.dumps(task | {"numbers": [*range(first, nodes, processes)]})
            command = [sys.executable, "-m", __spec__.name, f"--hold={mine}"]
            holder = Child(
                "a process with nodes", command, environment={**os.environ, "PYTHONPATH": str(TESTS)}, end_limit_s=0
            )
            holders.append(running.enter_context(holder))
        for holder in holders:
            holder.wait_ready(_LIMIT_S)
        without = _share(server.pid, seconds)
        with _view(task["endpoint"]) as terminal:
            whole = f"{nodes} nodes, {nodes * workers} workers"
            wait_until(lambda: whole in terminal.text, _LIMIT_S, lambda: f"no {whole!r} in {_words(terminal.text)}")
            drawn = terminal.bytes
            watched = _share(server.pid, seconds, lambda: terminal.bytes > drawn)
            return {"without": without, "with": watched, "drawn": terminal.bytes - drawn}


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _share(pid: int, seconds: float, seen: Callable[[], bool] = lambda: True) -> float:
    """In that many seconds, and until it is ``seen``."""
    before, began = exact_cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    wait_until(seen, _LIMIT_S, lambda: "the view stands still")
    return (exact_cpu_seconds(pid) - before) / (time.monotonic() - began)


class _Terminal:
    """Reads what is drawn on it, and keeps the end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.bytes, self.text = 0, ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while data := os.read(self._descriptor, 65536):
                self.bytes += len(data)
                self.text = (self.text + data.decode(errors="replace"))[-200_000:]
        except OSError:  # the command has ended
            pass


def _words(drawn: str) -> str:
    """The end of it, without what steers the terminal."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\s+", " ", drawn)[-1500:]


@contextmanager
def _view(endpoint: str) -> Iterator[_Terminal]:
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    command = [
        sys.executable,
        "-m",
        "rdzv_launcher.tools",
        "top",
        f"--rdzv-endpoint={endpoint}",
        "--rdzv-id=watched",
        "--timeout=60",
    ]
    env = os.environ | {"TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(command, stdin=secondary, stdout=secondary, stderr=secondary, env=env) as shown:
        os.close(secondary)
        try:
            yield _Terminal(primary)
        finally:
            shown.kill()
            shown.wait()
            os.close(primary)


def _hold(task: Mapping[str, Any]) -> None:
    """The nodes of this process, from when all of the job have joined until standard input ends."""
    raise_file_limit()
    threading.stack_size(_STACK_BYTES)
    host = PluginHost.load()
    request = Request(
        backend="parallel",
        run_id="watched",
        endpoint=task["endpoint"],
        min_nodes=task["nodes"],
        max_nodes=task["nodes"],
        nproc_per_node=task["workers"],
        conf={"allow_same_host": "true", "is_host": "false", "join_timeout": str(int(_LIMIT_S))},
    )
    entry = host.catalog.find(request.backend)
    handlers = [create_handler(host, entry, prepare(entry, request)) for _ in task["numbers"]]

    def answer(rank: int, question: Question) -> Any:
        if question.kind != VITALS:
            raise UnknownKind(question.kind)
        now = time.monotonic()
        workers = [
            {"rank": rank * task["workers"] + local, "local_rank": local, "pid": 4_000_000 + local, "state": "R",
             "cpu_s": now, "memory_bytes": 12 << 30}
            for local in range(task["workers"])
        ]  # fmt: skip
        return {"stage": "working", "restarts": 0, "starts": 1, "at": now, "workers": workers}

    def join(number: int, handler: Any) -> None:
        inner = handler._inner  # of ElasticHandler
        inner._self.me = structs.replace(
            inner._self.me, pid=_FIRST_PID + number
        )  # nodes are told apart by host and pid
        joined = handler.next_rendezvous()
        inner.questions.answer_with(partial(answer, joined.rank))

    with ThreadPoolExecutor(len(handlers)) as threads:
        list(threads.map(join, task["numbers"], handlers))
    print("joined", flush=True)
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=8, help="of each node")
    parser.add_argument("--seconds", type=float, default=60.0, help="for which the server is measured, twice")
    parser.add_argument("--processes", type=int, default=16, help="which the nodes share")
    parser.add_argument("--hold", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hold:
        _hold(args.hold)
        return
    found = measure(args.nodes, args.workers, args.seconds, args.processes)
    print(f"rdzv serve with {args.nodes} nodes, share of one core over {args.seconds:g} s:")
    print(f"  unwatched  {found['without']:7.2%}")
    print(f"  rdzv top   {found['with']:7.2%}, so {found['with'] - found['without']:.2%} for the view")


if __name__ == "__main__":
    main()
