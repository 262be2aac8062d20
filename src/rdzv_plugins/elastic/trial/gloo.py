"""The agent's end of ``gloo_child``, and the store through which two such processes find each other."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from typing import Any

from rdzv_plugins.elastic.trial.sockets import Broken
from rdzv_plugins.kvstore.native.server import StoreServer

_CHILD = "rdzv_plugins.elastic.trial.gloo_child"


class Gloo:
    """A process with torch, from construction until ``close``. Thread-safe; one measurement runs at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: StoreServer | None = None
        self._ready = False
        self._child = subprocess.Popen(
            [sys.executable, "-m", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TORCH_CPP_LOG_LEVEL": "FATAL"},
        )

    def wait_until_ready(self) -> None:
        """Block until torch is imported. Raises ``Broken`` if it cannot be."""
        with self._lock:
            self._wait()

    def _wait(self) -> None:
        if not self._ready:
            self._answer()
            self._ready = True

    def serve(self) -> int:
        """The port of a store served by this node, for pairs in which it is the one that was dialled."""
        with self._lock:
            if self._store is None:
                self._store = StoreServer(threads=1, name="preflight", purpose="workers")
            return self._store.port

    def measure(self, host: str, port: int, prefix: str, rank: int, timeout: float) -> int:
        """Bytes per second with the node that does the same. Blocks for about ``timeout`` seconds at most.

        Raises ``Broken``.
        """
        with self._lock:
            self._wait()
            request = {"host": host, "port": port, "prefix": prefix, "rank": rank, "timeout": timeout}
            assert self._child.stdin is not None
            try:
                self._child.stdin.write(json.dumps(request) + "\n")
                self._child.stdin.flush()
            except OSError:
                raise Broken("the process that measures gloo has ended") from None
            return int(self._answer()["rate"])

    def close(self) -> None:
        """End the process. Callable from any thread, even during a measurement; may be repeated."""
        with contextlib.suppress(OSError):
            self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        if self._store is not None:
            self._store.close()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        try:
            line = self._child.stdout.readline()
            answer: dict[str, Any] = json.loads(line)
        except (OSError, ValueError):
            raise Broken("the process that measures gloo has ended") from None
        if "problem" in answer:
            raise Broken(str(answer["problem"]))
        return answer


def why_not(has_token: bool) -> str:
    """Why gloo cannot be measured on this node; empty if it can."""
    if find_spec("torch") is None:
        return "torch is not installed"
    if has_token:  # torch's client cannot present one, and the store would be open to everybody
        return "this job has a token, which torch's own store client cannot prove"
    return ""
