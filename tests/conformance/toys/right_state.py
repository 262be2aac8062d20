"""A state in a file of a directory that all nodes share: right in everything. Toys put one fault into it."""

import fcntl
import json
import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rdzv_plugins import Backend, Capability
from rdzv_plugins.elastic.settings import DynamicSettings
from rdzv_plugins.errors import UsageError


class State:
    """A ``RendezvousBackend``. The token is the number of writes so far."""

    name = "toy"

    def __init__(self, path):
        self._path = path

    def get_state(self):
        with self.locked() as file:
            return read(file)

    def set_state(self, state, token=None):
        with self.locked() as file:
            held = read(file)
            if token != (held[1] if held else None):
                return (*held, False) if held else None
            count = (token or 0) + 1
            file.seek(0)
            file.truncate()
            file.write(json.dumps({"count": count, "state": state.hex()}))
            return state, count, True

    @contextmanager
    def locked(self):
        with open(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file


def read(file):
    text = file.read()
    data = json.loads(text) if text else None
    return (bytes.fromhex(data["state"]), data["count"]) if data else None


def validate(request):
    if not os.path.isdir(request.endpoint):
        raise UsageError(f"{request.endpoint!r} is no directory", remedy="Give --rdzv-endpoint=DIRECTORY.")


def create(request):
    return State(Path(request.endpoint, request.run_id))


def backend(name, **changes):
    """The descriptor; ``changes`` replace its fields."""
    right = Backend(
        name=name,
        summary="a file in a directory that all nodes share",
        create=create,
        capabilities=frozenset({Capability.ELASTIC}),
        options=DynamicSettings,
        validate=validate,
    )
    return replace(right, **changes)
