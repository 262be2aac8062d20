"""Fault: while the service is away, what was read last is read again."""

from right_served_state import ServedState, backend

from rdzv_plugins import hookimpl
from rdzv_plugins.errors import EndpointUnreachable


class Cached(ServedState):
    last = None

    def get_state(self):
        try:
            self.last = super().get_state()
        except EndpointUnreachable:
            pass
        return self.last


@hookimpl
def rdzv_register_backends():
    return backend("state-served-from-cache", Cached)
