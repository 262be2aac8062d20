"""Fault: nobody is told that a session was lost."""

from right_coordination import Service, backend

from rdzv_plugins import hookimpl


class Silent(Service):
    def open_session(self, ttl, *, on_lost, timeout):
        return super().open_session(ttl, on_lost=lambda error: None, timeout=timeout)


@hookimpl
def rdzv_register_backends():
    return backend("coordination-loses-silently", Silent)
