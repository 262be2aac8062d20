"""Fault: ``put`` never returns, and waits in C, where no signal of Python's is heard."""

import ctypes

from right_coordination import Session, backend, service_of

from rdzv_plugins import hookimpl


class Deaf(Session):
    def put(self, items, *, ephemeral=False, guard=None, timeout):
        mutex = ctypes.create_string_buffer(256)  # all zeros: PTHREAD_MUTEX_INITIALIZER
        lock = ctypes.CDLL(None).pthread_mutex_lock
        lock(mutex)
        lock(mutex)  # nobody unlocks it


@hookimpl
def rdzv_register_backends():
    return backend("coordination-deaf", service_of(Deaf))
