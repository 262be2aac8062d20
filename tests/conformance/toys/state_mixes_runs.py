"""Fault: all runs at an endpoint share one state."""

from pathlib import Path

from right_state import State, backend

from rdzv_plugins import hookimpl


def create(request):
    return State(Path(request.endpoint, "state"))


@hookimpl
def rdzv_register_backends():
    return backend("state-mixes-runs", create=create)
