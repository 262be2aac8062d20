"""Fault: a node is told twice that its session was lost."""

from right_coordination import Service, backend

from rdzv_plugins import hookimpl


class Insistent(Service):
    def open_session(self, ttl, *, on_lost, timeout):
        def twice(error):
            on_lost(error)
            on_lost(error)

        return super().open_session(ttl, on_lost=twice, timeout=timeout)


@hookimpl
def rdzv_register_backends():
    return backend("coordination-loses-twice", Insistent)
