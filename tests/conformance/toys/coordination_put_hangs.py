"""Fault: ``put`` never returns. It can be interrupted."""

import threading

from right_coordination import Session, backend, service_of

from rdzv_plugins import hookimpl


class Hanging(Session):
    def put(self, items, *, ephemeral=False, guard=None, timeout):
        threading.Event().wait()


@hookimpl
def rdzv_register_backends():
    return backend("coordination-put-hangs", service_of(Hanging))
