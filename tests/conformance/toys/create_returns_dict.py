"""Fault: what ``create`` returns is no backend."""

from right_state import backend

from rdzv_plugins import hookimpl


@hookimpl
def rdzv_register_backends():
    return backend("create-returns-dict", create=lambda request: {"get_state": None, "set_state": None})
