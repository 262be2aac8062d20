"""A store server whose name server is the test, for test_no_dns.py: ``served_with_dns.py ours|torch ADDRESS``.

Needs root: /etc/resolv.conf is replaced in a mount namespace of this process. Prints its port, ends with its input.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path

CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000


def replace(path: str, content: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(content)
        file.flush()
        if libc.mount(file.name.encode(), path.encode(), None, MS_BIND, None) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


def main() -> None:
    kind, address = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        print(json.dumps(f"no mount namespace: {os.strerror(ctypes.get_errno())}"), flush=True)
        return
    replace("/etc/resolv.conf", f"nameserver {address}\noptions timeout:1 attempts:1\n")
    if Path("/etc/nsswitch.conf").exists():
        replace("/etc/nsswitch.conf", "hosts: files dns\n")
    if kind == "ours":
        from rdzv_plugins.kvstore.native.server import StoreServer

        server = StoreServer(threads=2)
        print(server.port, flush=True)
        for _ in sys.stdin:
            print(json.dumps(server.stats()), flush=True)
        server.close()
    else:
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        print(store.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
