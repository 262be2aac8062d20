"""The servers that ``rdzv bench store`` compares, each started in a process of its own."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from types import TracebackType

from launcher.bench.ends import end_by_input, tail
from launcher.bench.measure import exact_cpu_seconds
from rdzv_plugins.errors import RdzvError, UsageError

_START_LIMIT_S = 120.0
_SETTLE_LIMIT_S = 20.0
_QUIET_S = 0.02


@dataclass(frozen=True)
class Target:
    """A kind of server; ``ours:2`` is ours with two threads."""

    name: str

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def threads(self) -> int:
        """Event loops of ours; 0: its default."""
        return int(self.name.partition(":")[2] or 0)

    @property
    def echo(self) -> bool:
        return self.kind == "echo"

    @property
    def reference(self) -> bool:
        """Whether others are compared with it."""
        return self.kind != "ours"

    @property
    def looks_up_names(self) -> bool:
        """Whether it asks for the name of every peer that it accepts."""
        return self.kind in ("libuv", "legacy")


KINDS = {
    "ours": "our server, with its default number of threads; ours:N with N",
    "libuv": "torch's TCPStore server",
    "legacy": "torch's older server (use_libuv=False)",
    "echo": "a bare epoll loop: one recv and one send for each message of the same size, and nothing else",
}


def parse_target(text: str) -> Target:
    """A target by its name. Raises ``UsageError``."""
    kind, colon, threads = text.partition(":")
    if kind not in KINDS or (colon and (kind != "ours" or not threads.isdecimal() or int(threads) < 1)):
        raise UsageError(f"--targets: '{text}' is none of {', '.join(KINDS)}, ours:N")
    return Target(text)


class Server:
    """A running server. A context manager: it is stopped at the end of the block."""

    def __init__(self, target: Target, prefix: list[str]) -> None:
        """``prefix``: what goes before its command. Returns at once, see ``wait_ready``."""
        self.target = target
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        command = [*prefix, sys.executable, "-m", "launcher.bench.store_server", target.kind, str(target.threads)]
        # what torch says about every connection that is reset would be counted as its CPU
        environment = {"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the benchmark, which then ends it
        )
        self.port = 0

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until it serves at ``port``. Raises ``RdzvError`` with its last words if it does not."""
        assert self._process.stdout is not None, "started with a pipe"
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(_START_LIMIT_S) else b""
        if not line.strip().isdigit():
            raise RdzvError(f"the server '{self.target.name}' did not start{tail(self._stderr)}")
        self.port = int(line)

    def cpu_seconds(self) -> float:
        """CPU time so far, once the server has nothing left to do (or does not come to an end)."""
        end = time.monotonic() + _SETTLE_LIMIT_S
        try:
            before = exact_cpu_seconds(self.pid)
            while True:
                time.sleep(_QUIET_S)
                now = exact_cpu_seconds(self.pid)
                if now - before < _QUIET_S / 50 or time.monotonic() > end:
                    return now
                before = now
        except OSError:
            raise RdzvError(f"the server '{self.target.name}' has ended{tail(self._stderr)}") from None

    def stop(self) -> None:
        """End it, if it has not ended."""
        end_by_input(self._process, 0.5)
        self._stderr.close()
