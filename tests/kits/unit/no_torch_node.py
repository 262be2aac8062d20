"""A node's part in a rendezvous, in a process that must not import torch or numpy: every attempt is refused and told.

Its argument is a request, as JSON. Each line of its input is a list, a call: ``join``, ``store`` METHOD ARGUMENTS...,
``changed`` (returns when the node has to join again), ``leave``. It answers each by a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.machinery import ModuleSpec
from typing import Any

FORBIDDEN = ("torch", "torch_npu", "numpy")
tried: list[str] = []


class Refusing:
    """A finder that finds nothing, and refuses what is not to be imported here."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] in FORBIDDEN:
            tried.append(name)
            raise ImportError(f"{name} is not to be imported here")
        return None


def main() -> None:
    sys.meta_path.insert(0, Refusing())  # type: ignore[arg-type]

    from rdzv_plugins import Outcome, Request
    from rdzv_plugins.assemble.create import create_rendezvous, prepare
    from rdzv_plugins.host import PluginHost

    host = PluginHost.load()
    asked = Request(**json.loads(sys.argv[1]))
    entry = host.catalog.find(asked.backend)
    rendezvous = create_rendezvous(host, entry, prepare(entry, asked))
    info: Any = None
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        answer: Any = None
        if what == "join":
            info = rendezvous.next_rendezvous()
            answer = [info.rank, info.world_size, info.bootstrap_store_info.master_port > 0]
        elif what == "store":
            answer = getattr(info.store, arguments[0])(*arguments[1:])
        elif what == "changed":
            while not rendezvous.handler.num_nodes_waiting():
                time.sleep(0.05)  # as an agent asks
        elif what == "leave":
            rendezvous.handler.note_done()
            rendezvous.leave(Outcome("done"))
            rendezvous.shutdown()
            answer = tried + [name for name in sys.modules if name.partition(".")[0] in FORBIDDEN]
        print(json.dumps(answer.decode() if isinstance(answer, bytes) else answer), flush=True)


main()
