"""Faults in its entry: a name with capitals, an empty summary, an alias that is none."""

from right_state import backend

from rdzv_plugins import hookimpl


@hookimpl
def rdzv_register_backends():
    return backend("Plugin_Badly_Named", summary="", aliases=("also bad",))
