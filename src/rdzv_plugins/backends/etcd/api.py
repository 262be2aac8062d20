"""gRPC, and the messages and stubs of etcd's v3 API, which package ``etcd3`` provides. Nothing else imports them.

``etcd3`` was generated before protobuf 4, which rejects such code unless it runs in its pure-Python mode. That mode is
chosen by an environment variable at the moment when protobuf is first imported. So the variable is set for that import
alone: workers, which inherit the environment, choose for themselves.

The definitions are those of https://github.com/etcd-io/etcd, api/etcdserverpb/rpc.proto.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from rdzv_plugins.errors import BrokenPlugin

_MODE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
_DURING_IMPORT = {_MODE: "python", "GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
"""gRPC's own lines about each failed handshake tell users less than our messages.

Its handlers around ``fork`` start its threads again in the child, which sometimes crashes; no child of ours uses gRPC.
"""


@contextlib.contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _load() -> tuple[Any, Any]:
    changes = {name: value for name, value in _DURING_IMPORT.items() if name == _MODE or name not in os.environ}
    with _environment(changes), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from old generated code
        try:
            import grpc
            from etcd3 import etcdrpc
        except TypeError as error:  # protobuf's way of rejecting it
            implementation = sys.modules.get("google.protobuf.internal.api_implementation")
            mode = implementation.Type() if implementation is not None else "unknown"
            raise BrokenPlugin(
                f"backend 'etcd' needs protobuf in its pure-Python mode, but this process has already loaded it in "
                f"mode {mode!r}, for another plug-in or library ({str(error).splitlines()[0]})",
                remedy=f"Set {_MODE}=python in the environment of this command (workers would inherit it), "
                "switch the other plug-in off with --rdzv-no-plugin, or install protobuf<4.",
            ) from error
    return grpc, etcdrpc


def unknown_fields(message: Any) -> dict[int, list[Any]]:
    """What a message has beyond the fields of this version of the API, by field number: numbers and bytes.

    A field that holds 0 or False is not sent.
    """
    try:
        from google.protobuf.unknown_fields import UnknownFieldSet
    except ImportError:  # before protobuf 4.23, messages had a method for this
        fields = message.UnknownFields()
    else:
        fields = UnknownFieldSet(message)
    found: dict[int, list[Any]] = {}
    for field in fields:
        found.setdefault(field.field_number, []).append(field.data)
    return found


grpc, rpc = _load()
"""The packages ``grpc`` and ``etcd3.etcdrpc``."""
