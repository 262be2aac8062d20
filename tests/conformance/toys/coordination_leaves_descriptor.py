"""Fault: a descriptor of each session outlives it."""

import os

from right_coordination import Service, backend

from rdzv_plugins import hookimpl


class Leaving(Service):
    def open_session(self, ttl, *, on_lost, timeout):
        os.open("/dev/null", os.O_RDONLY)
        return super().open_session(ttl, on_lost=on_lost, timeout=timeout)


@hookimpl
def rdzv_register_backends():
    return backend("coordination-leaves-descriptor", Leaving)
