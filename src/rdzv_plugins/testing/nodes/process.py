"""The processes of nodes: forks of a program that has imported torch and the plug-in host (``testing.forks``).

They die with that program.

Each node's process makes its handler as the launcher does and obeys the lines of JSON on its own socket: ``{"id": 7,
"do": "join", "lane": "agent", ...}``. The answer has the same id, and ``value`` or ``error``. Commands of one lane are
done one after the other; the lanes do not wait for each other:

* ``agent``, the main thread: everything that torch's agent would call;
* ``worker``: a stock torch client of the round's store, as a worker has one;
* ``side``: figures of the process, and notes that may come from any thread.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from rdzv_plugins.host import PluginHost
from rdzv_plugins.linux import prctl
from rdzv_plugins.testing.forks import process
from rdzv_plugins.testing.nodes import messages as node_messages

LANES = ("agent", "worker", "side")
_NEEDED = ("rdzv_plugins.dynamic.handler", "rdzv_plugins.elastic.handler", "rdzv_plugins.testing.nodes.commands")
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that every program in Python ignores."""


class NodeProcess:
    """The commands of one node, in its process."""

    def __init__(self, connection: socket.socket, job: Mapping[str, Any]) -> None:
        from rdzv_plugins.testing.nodes.commands import Commands

        self._connection = connection
        self._send_lock = threading.Lock()
        self._commands = Commands(job)
        self._lanes: dict[str, queue.SimpleQueue[Mapping[str, Any] | None]] = {}

    def run(self) -> int:
        """Obey until told to exit. The main thread is the agent's."""
        self._lanes = {lane: queue.SimpleQueue() for lane in LANES}
        for lane in LANES[1:]:
            threading.Thread(target=self._work, args=(lane,), name=f"node-{lane}", daemon=True).start()
        threading.Thread(target=self._read, name="node-commands", daemon=True).start()
        self._work("agent")
        return 0

    def _read(self) -> None:
        with self._connection.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                command = json.loads(line)
                self._lanes[command["lane"]].put(command)
        os._exit(1)  # nobody is there who could ask for anything

    def _work(self, lane: str) -> None:
        while (command := self._lanes[lane].get()) is not None:
            answer: dict[str, Any] = {"id": command["id"]}
            if command["do"] == "exit":
                self._answer(answer | {"value": None})
                return
            try:
                method: Callable[..., Any] = getattr(self._commands, command["do"])
                answer["value"] = node_messages.encode(method(*node_messages.decode(command["args"])))
            except Exception as error:
                logging.getLogger(__name__).debug("%s: %s", command["do"], traceback.format_exc())
                answer["error"] = node_messages.error_as_data(error)
            self._answer(answer)

    def _answer(self, answer: Mapping[str, Any]) -> None:
        with self._send_lock:
            self._connection.sendall(json.dumps(answer).encode() + b"\n")


def prepare(_: str) -> None:
    """See ``testing.forks.program``."""
    for name in _NEEDED:
        importlib.import_module(name)
    PluginHost.load()  # for the modules of the plug-ins


def become(parent: int, job: Mapping[str, Any], fds: list[int]) -> Callable[[], int]:
    """Turn this process into a node's: it ends with its parent; ``fds`` are its connection and its output."""
    connection, output = fds
    prctl.die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        as_at_start = signal.SIG_IGN if number in _IGNORED else signal.SIG_DFL
        if signal.getsignal(number) is not as_at_start:
            signal.signal(number, as_at_start)
    process.settle(output, output, job["directory"], job["environment"])
    sys.path[:] = job["path"]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s: %(message)s", force=True)
    logging.getLogger("rdzv_plugins").setLevel(logging.DEBUG)
    return NodeProcess(socket.socket(fileno=connection), job).run
