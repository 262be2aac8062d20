"""Faults: its endpoint is HOST:PORT, it dials for one second, and says neither whom nor what to do."""

import socket

from right_state import backend

from rdzv_plugins import hookimpl
from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.errors import RendezvousFailed


def validate(request):
    parse_endpoint(request.endpoint, None)


def create(request):
    endpoint = parse_endpoint(request.endpoint, None)
    try:
        return socket.create_connection((endpoint.host, endpoint.port), timeout=1)
    except OSError:
        raise RendezvousFailed("could not connect") from None


@hookimpl
def rdzv_register_backends():
    return backend("plugin-hides-endpoint", create=create, validate=validate)
