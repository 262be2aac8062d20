"""What surrounds the nodes of a benchmark, each in a process of its own: stores, a relay, proxies, clients.

``python -m rdzv_launcher.bench.processes.parts ROLE TASK`` is one of them. It prints one line of JSON when it is ready
and one for each line that it reads, and ends with its standard input.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

from rdzv_launcher.bench.method.turns import DidNotFinish
from rdzv_launcher.bench.processes.child import Child, module_command
from rdzv_launcher.bench.processes.closed import RUN, of_client, of_server
from rdzv_launcher.bench.processes.hosts import Machine, inside
from rdzv_launcher.bench.processes.load import checked, clients
from rdzv_launcher.bench.processes.sessions import Sessions
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.kvstore.native.limits import raise_file_limit
from rdzv_plugins.options import PortRange

if TYPE_CHECKING:
    from rdzv_plugins.kvstore.native.server import Admit

_LOOPBACK = "127.0.0.1"
_ANY = "0.0.0.0"
_BACKLOG = 2**16
"""The kernel caps it at somaxconn."""
_ANSWER_LIMIT_S = 300.0


class Part(Child):
    """Such a process, as the benchmark sees it."""

    def __init__(self, role: str, **task: Any) -> None:
        """Returns at once; call ``start`` next. A task's ``machine`` is ``asdict`` of where the process should be."""
        super().__init__(f"the process of '{role}'", module_command("processes.parts", role, json.dumps(task)))
        self.ready: dict[str, Any] = {}

    def start(self) -> None:
        """Wait until it serves. Raises ``RdzvError`` with its last words if it does not."""
        self.ready = self._understood(self.wait_ready(_ANSWER_LIMIT_S))

    @property
    def port(self) -> int:
        """The port on which a store or a relay serves."""
        return int(self.ready["port"])

    def question(self, **what: Any) -> dict[str, Any]:
        """Ask, and return the answer. Raises ``RdzvError`` if there is none, or the process has ended."""
        self.begin(**what)
        return self.answer()

    def begin(self, **what: Any) -> None:
        """Ask, and leave the ``answer`` for later: others may be asked at the same time."""
        self.tell(json.dumps(what))

    def answer(self) -> dict[str, Any]:
        """The answer to the next line that it was told. Raises ``RdzvError`` if there is none, or it has ended."""
        return self._understood(self.read(_ANSWER_LIMIT_S))

    def _understood(self, line: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RdzvError(f"{self._what}: {answer['error']}{self._last_words()}")
        return answer


class _Store:
    """The server that holds all keys."""

    def __init__(self, machine: dict[str, str], conf: dict[str, str] | None = None) -> None:
        """``conf`` comes from ``closed.conf_of``, if strangers are kept out."""
        from rdzv_plugins.kvstore.native.server import StoreServer

        tokens, tls = of_server(conf or {})
        with inside(Machine(**machine)):
            self._server = StoreServer(_ANY if machine["network"] else _LOOPBACK, tokens=tokens, tls=tls)
        self.ready = {"port": self._server.port, "threads": self._server.threads}

    def answer(self) -> dict[str, Any]:
        """Answer with the statistics of what is served."""
        stats = self._server.stats()
        for keyspace in stats["keyspaces"]:
            keyspace.pop("waited", None)
        return stats


class _NodeStore:
    """The store as a node's workers see it: a server, and the node's proxy in front of it."""

    def __init__(self) -> None:
        from rdzv_plugins.kvstore.native.proxy import StoreProxy
        from rdzv_plugins.kvstore.native.server import StoreServer

        path = f"@rdzv-bench-{os.getpid()}"
        self._server = StoreServer(_LOOPBACK)
        self._proxy = StoreProxy(Endpoint(_LOOPBACK, self._server.port))
        self.ready = {"port": self._proxy.listen(), "path": path}
        self._proxy.listen_unix(path)


class _Relay:
    """A way to a server that takes time."""

    def __init__(self, machine: dict[str, str], host: str, port: int, delay_s: float, there: bool = True) -> None:
        """``delay_s``: in each direction; ``there``: it dials from where it listens, otherwise from outside."""
        from rdzv_launcher.bench import _load

        home = Machine(**machine)
        with inside(home):
            self._listener = socket.create_server((_ANY if home.network else _LOOPBACK, 0), backlog=_BACKLOG)
        arguments = (self._listener.fileno(), host, port, delay_s)
        with inside(home) if there else nullcontext():
            threading.Thread(target=_load.serve_delayed, args=arguments, daemon=True).start()
        self.ready = {"port": self._listener.getsockname()[1]}

    def answer(self) -> dict[str, Any]:
        """Return nothing: a relay has nothing to tell."""
        return {}


class _Proxies:
    """The proxies of some nodes. Each has its own threads, which are where its node is."""

    def __init__(self, conf: dict[str, str] | None = None) -> None:
        """``conf`` is that of the store."""
        self._token, self._tls = of_client(conf or {})
        self._admit: Admit = "user" if conf else "anyone"
        self._proxies: list[Any] = []
        self._echoes: list[socket.socket] = []
        self.ready: dict[str, Any] = {}

    def answer(self, open: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """Open some more, or sum up what they have counted."""
        return self._counted() if open is None else {"places": [self._open(**each) for each in open]}

    def _open(
        self, machine: dict[str, str], name: str, host: str, port: int, unix: bool, parent: bool, echo: bool
    ) -> str:
        """Open a proxy, or an ``echo`` in its place; returns its address for workers and, if it has any, children."""
        from rdzv_plugins.kvstore.native.proxy import StoreProxy

        home = Machine(**machine)
        with inside(home):
            if echo:
                return f"{_LOOPBACK}:{self._echo()}"
            proxy = StoreProxy(
                Endpoint(host, port),
                name=name,
                leaf=not parent,
                timeout=60.0,
                token=self._token,
                run_id=RUN,
                tls=self._tls,
            )
            self._proxies.append(proxy)
            if unix:
                path = f"@rdzv-bench-{os.getpid()}-{name}"
                proxy.listen_unix(path)
                return f"unix:{path}"
            near = _ANY if parent and home.network else _LOOPBACK
            return f"{_LOOPBACK}:{proxy.listen(near, PortRange(0, 0), admit=self._admit)}"

    def _echo(self) -> int:
        from rdzv_launcher.bench import _load

        listener = socket.create_server((_LOOPBACK, 0), backlog=_BACKLOG)
        self._echoes.append(listener)
        threading.Thread(target=_load.serve_echo, args=(listener.fileno(),), daemon=True).start()
        return int(listener.getsockname()[1])

    def _counted(self) -> dict[str, Any]:
        counts: dict[str, Any] = {"requests": 0, "upstream": {}, "saved": {}, "lost": [], "reconnects": 0}
        for proxy in self._proxies:
            stats = proxy.stats()
            about = stats["proxy"]
            counts["requests"] += sum(stats["requests"].values())
            counts["reconnects"] += about["reconnects"]
            counts["lost"] += [proxy.lost] if proxy.lost else []
            for group in ("upstream", "saved"):
                for name, count in about[group].items():
                    counts[group][name] = counts[group].get(name, 0) + count
        return counts


class _Clients:
    """Clients of a server, which check every reply, and stay until the process ends."""

    def __init__(self, who: str, port: int, echo: bool) -> None:
        self._open = ExitStack()
        self._load = self._open.enter_context(clients(who, port, echo=echo))
        self._who = who
        self.ready: dict[str, Any] = {}

    def answer(self, phase: str, **arguments: Any) -> dict[str, Any]:
        """Take all through ``connect`` or a workload; answer with figures, or with why they are ``unfinished``."""
        try:
            with checked(self._who):
                if phase == "connect":
                    figures = self._load.connect(storm=False, **arguments)
                else:
                    figures = self._load.run(phase, **arguments)
        except DidNotFinish as error:
            return {"unfinished": str(error)}
        return {"requests": figures.requests, "p50_us": figures.p50_us, "p99_us": figures.p99_us}


_ROLES: dict[str, Any] = {
    "store": _Store,
    "node-store": _NodeStore,
    "relay": _Relay,
    "proxies": _Proxies,
    "clients": _Clients,
    "sessions": Sessions,
}


def main() -> None:
    """Serve until standard input ends."""
    raise_file_limit()
    try:
        part = _ROLES[sys.argv[1]](**json.loads(sys.argv[2]))
        print(json.dumps(part.ready), flush=True)
        for line in sys.stdin:
            print(json.dumps(part.answer(**json.loads(line))), flush=True)
    except (RdzvError, OSError) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
    os._exit(0)  # no tidying up of thousands of connections


if __name__ == "__main__":
    main()
