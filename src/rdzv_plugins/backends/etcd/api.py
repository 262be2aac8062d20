"""gRPC, and the messages of etcd's v3 API. Nothing else imports them.

The messages are generated, see ``_generated/README.md``, from the definitions of https://github.com/etcd-io/etcd,
api/etcdserverpb/rpc.proto.
"""

from __future__ import annotations

import os
from typing import Any

_DURING_IMPORT = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
"""gRPC's own lines about each failed handshake tell users less than our messages.

Its handlers around ``fork`` start its threads again in the child, which sometimes crashes; no child of ours uses gRPC.
It reads both when it is imported, and nowhere else can it be told. Workers, which inherit the environment, choose for
themselves.
"""


def _load_grpc() -> Any:
    added = {name: value for name, value in _DURING_IMPORT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        import grpc
    finally:
        for name in added:
            del os.environ[name]
    return grpc


grpc: Any = _load_grpc()
from rdzv_plugins.backends.etcd._generated import etcd_pb2  # noqa: E402

rpc: Any = etcd_pb2
"""The messages, by their names there."""
