"""An etcd for ``rdzv bench rendezvous``: a process of its own on loopback, and what it says of itself.

``python -m launcher.bench.etcd_server DIR`` watches over it. It starts etcd on a free port with its data in a new
directory below DIR, prints the port and etcd's process id, and ends with its standard input, with which go etcd and
its data: nothing is left behind if whoever started it is killed. If it is killed itself, the kernel ends etcd.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import re
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from types import TracebackType

from launcher.bench.ends import end_by_input, tail, with_parent
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.kvstore.limits import raise_file_limit
from rdzv_plugins.testing.launch_processes import MARK

HOST = "127.0.0.1"
_START_LIMIT_S = 60.0
_END_LIMIT_S = 10.0
_ANSWER_LIMIT_S = 60.0
_MODULES = ("etcd3", "grpc")
_NEEDED_VARIABLE = "ETCD_UNSUPPORTED_ARCH"
"""etcd does not start without it on some machines. All its other variables are settings of somebody else's etcd."""
_READY = re.compile(r'serving client traffic.*"address":"[^"]*:(\d+)"')
_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_METHOD = re.compile(r'grpc_method="(\w+)"')
_MESSAGES = "grpc_server_msg_received_total"
_KEEP_ALIVE = "LeaseKeepAlive"
_SYNCS = "etcd_disk_wal_fsync_duration_seconds_"


def what_is_missing() -> tuple[str, str] | None:
    """Why etcd cannot be measured here, and what to install; None if it can."""
    if shutil.which("etcd") is None:
        return "the program etcd is not installed", "Install it: on Debian and Ubuntu, apt-get install etcd-server."
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if missing:
        return (
            f"backend etcd is not installed: no module named {' or '.join(missing)}",
            "Install it: pip install 'rdzv-plugins[etcd]'.",
        )
    return None


class EtcdServer:
    """A running etcd. A context manager: it is stopped, and its data deleted, at the end of the block."""

    def __init__(self, directory: str) -> None:
        """Its data goes below ``directory``. Returns at once, see ``wait_ready``."""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        pipe = subprocess.PIPE
        self._watcher = subprocess.Popen(
            [sys.executable, "-m", "launcher.bench.etcd_server", directory],
            stdin=pipe,
            stdout=pipe,
            stderr=self._stderr,
            # without the guard's mark: killed by the guard of a benchmark, it would leave etcd's data
            env={name: value for name, value in os.environ.items() if name != MARK},
            start_new_session=True,  # Ctrl-C is for the benchmark, which then ends it
        )
        self.port = 0
        self.pid = 0
        """Of etcd itself."""

    def __enter__(self) -> EtcdServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_ready(self) -> None:
        """Wait until it serves at ``port``. Raises ``RdzvError`` with its last words if it does not."""
        assert self._watcher.stdout is not None, "started with a pipe"
        with selectors.DefaultSelector() as selector:
            selector.register(self._watcher.stdout, selectors.EVENT_READ)
            line = self._watcher.stdout.readline() if selector.select(_START_LIMIT_S) else b""
        if not line:
            raise RdzvError(f"etcd did not start{tail(self._stderr)}")
        self.port, self.pid = map(int, line.split())

    def stop(self) -> None:
        """End it, if it has not ended."""
        end_by_input(self._watcher, _END_LIMIT_S)
        self._stderr.close()


@dataclass(frozen=True)
class Metrics:
    """What an etcd has counted since it started."""

    requests: Counter[str] = field(default_factory=Counter)
    """Messages of clients by method, signs of life left out. A watch is one message on a stream that stays open."""
    keep_alives: int = 0
    syncs: int = 0
    """How often it made sure that its log is on disk."""
    sync_s: float = 0.0
    """And how long that took."""


def ask_metrics(port: int) -> Metrics:
    """Of the etcd on ``port``. Raises ``OSError``."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_ANSWER_LIMIT_S)
    try:
        connection.request("GET", "/metrics")
        return parse_metrics(connection.getresponse().read().decode())
    finally:
        connection.close()


def parse_metrics(text: str) -> Metrics:
    """From Prometheus' text format."""
    requests: Counter[str] = Counter()
    syncs = {"count": 0.0, "sum": 0.0}
    for line in text.splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            continue
        name, labels, value = sample.groups()
        if name == _MESSAGES and "etcdserverpb." in labels:
            method = _METHOD.search(labels)
            if method is not None and float(value):
                requests[method[1]] += int(float(value))
        elif name.startswith(_SYNCS):
            syncs[name.removeprefix(_SYNCS)] = float(value)
    keep_alives = requests.pop(_KEEP_ALIVE, 0)
    return Metrics(requests, keep_alives, int(syncs["count"]), syncs["sum"])


def _command(directory: str) -> list[str]:
    """etcd on ports that the kernel chooses; it says which in its log."""
    url = f"http://{HOST}:0"
    settings = {
        "name": "bench",
        "data-dir": directory,
        "listen-client-urls": url,
        "advertise-client-urls": url,
        "listen-peer-urls": url,
        "initial-advertise-peer-urls": url,
        "initial-cluster": f"bench={url}",
        "logger": "zap",
        "log-outputs": "stderr",
    }
    return ["etcd", *(f"--{name}={value}" for name, value in settings.items())]


def _listen(etcd: subprocess.Popen[str]) -> None:
    """Read its log: tell where it serves, and its last words should it end."""
    assert etcd.stderr is not None, "started with a pipe"
    last: deque[str] = deque(maxlen=12)
    told = False
    for line in etcd.stderr:
        last.append(line)
        if not told and (ready := _READY.search(line)):
            told = True
            print(ready[1], etcd.pid, flush=True)
    sys.stderr.writelines(last)
    sys.stderr.flush()
    os.close(sys.stdout.fileno())  # whoever waits for the port need not wait


def main() -> None:
    """Serve until standard input ends."""
    raise_file_limit()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("ETCD_") or name == _NEEDED_VARIABLE
    }
    with tempfile.TemporaryDirectory(prefix="rdzv-bench-etcd-", dir=sys.argv[1], ignore_cleanup_errors=True) as data:
        etcd = subprocess.Popen(
            _command(data),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=with_parent(),
        )
        threading.Thread(target=_listen, args=(etcd,), daemon=True).start()
        sys.stdin.buffer.read()
        etcd.kill()
        etcd.wait()


if __name__ == "__main__":
    main()
