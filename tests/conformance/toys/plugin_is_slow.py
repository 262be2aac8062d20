"""Fault: loading it computes for ten times as long as all that is done before."""

import time

from right_state import backend

from rdzv_plugins import hookimpl

_before = time.process_time()
while time.process_time() < 10 * _before:
    pass


@hookimpl
def rdzv_register_backends():
    return backend("plugin-is-slow")
