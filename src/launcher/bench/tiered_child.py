"""One part of ``rdzv bench tiered`` in a process of its own: ``python -m launcher.bench.tiered_child ROLE TASK``.

It prints one line of JSON when it is ready and one for each line that it reads, and ends with its standard input:
nothing is left behind if whoever started it is killed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from typing import Any

from launcher.bench.tiered_network import Machine, inside
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.kvstore.limits import raise_file_limit
from rdzv_plugins.options import PortRange

_LOOPBACK = "127.0.0.1"
_ANY = "0.0.0.0"


class Root:
    """The server that all keys are at."""

    def __init__(self, task: dict[str, Any]) -> None:
        from rdzv_plugins.kvstore.server import StoreServer

        with inside(Machine(**task["machine"])):
            self._server = StoreServer(_ANY if task["machine"]["network"] else _LOOPBACK)
        self.ready = {"port": self._server.port, "threads": self._server.threads}

    def answer(self, what: dict[str, Any]) -> dict[str, Any]:
        """Its statistics."""
        stats = self._server.stats()
        for keyspace in stats["keyspaces"]:
            keyspace.pop("waited", None)
        return stats


class Relay:
    """A way to the root that takes time."""

    def __init__(self, task: dict[str, Any]) -> None:
        from launcher.bench import _load

        machine = Machine(**task["machine"])
        with inside(machine):
            self._listener = socket.create_server((_ANY if machine.network else _LOOPBACK, 0), backlog=2**16)
            threading.Thread(
                target=_load.serve_delayed,
                args=(self._listener.fileno(), task["host"], task["port"], task["delay_s"]),
                daemon=True,
            ).start()
        self.ready = {"port": self._listener.getsockname()[1]}

    def answer(self, what: dict[str, Any]) -> dict[str, Any]:
        """It has nothing to tell."""
        return {}


class Proxies:
    """The proxies of some nodes. Each has threads of its own, which are where its node is."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._proxies: list[Any] = []
        self.ready: dict[str, Any] = {}

    def answer(self, what: dict[str, Any]) -> dict[str, Any]:
        """Open some more (``open``), or sum up what they have counted."""
        return {"places": [self._open(each) for each in what["open"]]} if "open" in what else self._counted()

    def _open(self, each: dict[str, Any]) -> str:
        """A proxy; its address for workers and, if it has children, for them too."""
        from rdzv_plugins.kvstore.proxy import StoreProxy

        machine = Machine(**each["machine"])
        with inside(machine):
            root = Endpoint(each["host"], each["port"])
            proxy = StoreProxy(root, name=each["name"], leaf=not each["parent"], timeout=60.0)
            self._proxies.append(proxy)
            if each["unix"]:
                name = f"@rdzv-bench-{os.getpid()}-{each['name']}"
                proxy.listen_unix(name)
                return f"unix:{name}"
            host = _ANY if each["parent"] and machine.network else _LOOPBACK
            return f"{_LOOPBACK}:{proxy.listen(host, PortRange(0, 0))}"

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


_ROLES: dict[str, Any] = {"root": Root, "relay": Relay, "proxies": Proxies}


def main() -> None:
    """Serve until standard input ends."""
    raise_file_limit()
    try:
        role = _ROLES[sys.argv[1]](json.loads(sys.argv[2]))
        print(json.dumps(role.ready), flush=True)
        for line in sys.stdin:
            print(json.dumps(role.answer(json.loads(line))), flush=True)
    except (RdzvError, OSError) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
    os._exit(0)  # no tidying up of thousands of connections


if __name__ == "__main__":
    main()
