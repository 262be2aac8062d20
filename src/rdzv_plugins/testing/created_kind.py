"""``python -m rdzv_plugins.testing.created_kind BACKEND ENDPOINT [KEY=VALUE ...]``: prints what ``create`` returns."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from types import MappingProxyType

from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.host.create import prepare
from rdzv_plugins.interfaces import RendezvousHandler, Request


def main(arguments: Sequence[str]) -> int:
    """``state``, ``coordination`` or ``handler``; 1, with the reason on stderr, if it cannot be created."""
    name, endpoint, *pairs = arguments
    conf = MappingProxyType(dict(pair.split("=", 1) for pair in pairs))
    run_id = f"conformance-{uuid.uuid4().hex[:8]}"
    request = Request(name, run_id, endpoint, min_nodes=1, max_nodes=1, nproc_per_node=1, conf=conf)
    entry = PluginHost.load().catalog.find(name)
    try:
        created = entry.backend.create(prepare(entry, request))
    except RdzvError as error:
        print(f"{type(error).__name__}: {error} {error.remedy}", file=sys.stderr)
        return 1
    if isinstance(created, RendezvousHandler):
        created.shutdown()
        print("handler")
    elif isinstance(created, CoordinationBackend):
        created.close()
        print("coordination")
    else:
        print("state")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
