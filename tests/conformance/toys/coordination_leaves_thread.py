"""Fault: a thread of each session outlives it."""

import threading

from right_coordination import Service, backend

from rdzv_plugins import hookimpl


class Leaving(Service):
    def open_session(self, ttl, *, on_lost, timeout):
        threading.Thread(target=threading.Event().wait, name="toy-leak", daemon=True).start()
        return super().open_session(ttl, on_lost=on_lost, timeout=timeout)


@hookimpl
def rdzv_register_backends():
    return backend("coordination-leaves-thread", Leaving)
