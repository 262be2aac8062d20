"""The store of ``rdzv bench transport``: a root and a node's proxy, in a process of their own.

Prints the proxy's port and Unix socket, and ends with its standard input.
"""

from __future__ import annotations

import sys
import uuid

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.proxy import StoreProxy
from rdzv_plugins.kvstore.server import StoreServer


def main() -> None:
    """Serve until standard input ends."""
    path = f"@rdzv-bench-{uuid.uuid4().hex}"
    with StoreServer("127.0.0.1") as root, StoreProxy(Endpoint("127.0.0.1", root.port)) as proxy:
        port = proxy.listen()
        proxy.listen_unix(path)
        print(port, path, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
