"""Fault: loading it imports a client library, which every launch of every backend then pays for."""

import redis_like_client  # noqa: F401
from right_state import backend

from rdzv_plugins import hookimpl


@hookimpl
def rdzv_register_backends():
    return backend("plugin-imports-client")
