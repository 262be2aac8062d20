"""Fault: it refuses a wrong endpoint by a ValueError: no message of the launcher's, and no remedy."""

import os

from right_state import backend

from rdzv_plugins import hookimpl


def validate(request):
    if not os.path.isdir(request.endpoint):
        raise ValueError("no directory")


@hookimpl
def rdzv_register_backends():
    return backend("plugin-validate-raises", validate=validate)
