"""Fault: loading it computes for most of a second."""

import time

from right_state import backend

from rdzv_plugins import hookimpl

while time.process_time() < 0.8:
    pass


@hookimpl
def rdzv_register_backends():
    return backend("plugin-is-slow")
