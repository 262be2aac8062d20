"""A store, or a proxy of one, in a process of its own, until its standard input ends; prints its port.

Arguments: ``torch``; ``parallel`` and how many threads; ``proxy``, the port of its root, and a Unix socket for its
workers beside the port.
"""

import socket
import sys

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.native.proxy import StoreProxy
from rdzv_plugins.kvstore.native.server import StoreServer

_PATIENCE_S = 120  # no proxy is given up because the machine is busy, which is wanted here


def _start(kind: str, arguments: list[str]) -> tuple[object, int]:
    if kind == "torch":
        from torch.distributed import TCPStore

        listener = socket.create_server(("127.0.0.1", 0))  # of IPv4: torch's server asks no name server about it
        port = listener.getsockname()[1]
        options = {"is_master": True, "wait_for_workers": False, "use_libuv": True}
        return TCPStore("127.0.0.1", port, master_listen_fd=listener.detach(), **options), port
    if kind == "parallel":
        server = StoreServer("127.0.0.1", 0, threads=int(arguments[0]))
        return server, server.port
    proxy = StoreProxy(Endpoint("127.0.0.1", int(arguments[0])), grace=_PATIENCE_S)
    proxy.listen_unix(arguments[1])
    return proxy, proxy.listen()


if __name__ == "__main__":
    kept, port = _start(sys.argv[1], sys.argv[2:])
    print(port, flush=True)
    sys.stdin.read()
