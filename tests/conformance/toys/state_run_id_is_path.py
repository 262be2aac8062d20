"""Fault: the id of a run is taken for a path."""

from pathlib import Path

from right_state import State, backend

from rdzv_plugins import hookimpl


def create(request):
    return State(Path(request.endpoint, request.run_id))


@hookimpl
def rdzv_register_backends():
    return backend("state-run-id-is-path", create=create)
