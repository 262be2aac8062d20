"""A state in a file of a directory that all nodes share: right in everything. Toys put one fault into it."""

import fcntl
import json
import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from rdzv_plugins import Backend, Capability
from rdzv_plugins.dynamic.options import DynamicSettings
from rdzv_plugins.errors import UsageError


class State:
    """A ``RendezvousBackend``. The token is the number of writes so far."""

    name = "toy"

    def __init__(self, path):
        self._path = path

    def get_state(self):
        text = self._path.read_text() if self._path.exists() else ""
        data = json.loads(text) if text else None
        return (bytes.fromhex(data["state"]), data["count"]) if data else None

    def set_state(self, state, token=None):
        with self.locked():
            held = self.get_state()
            if token != (held[1] if held else None):
                return (*held, False) if held else None
            count = (token or 0) + 1
            self.write(json.dumps({"count": count, "state": state.hex()}))
            return state, count, True

    def write(self, text):
        aside = self._path.with_suffix(".new")
        aside.write_text(text)
        aside.replace(self._path)  # whoever is killed before leaves the old one

    @contextmanager
    def locked(self):
        with open(self._path.with_suffix(".lock"), "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def validate(request):
    if not os.path.isdir(request.endpoint):
        raise UsageError(f"{request.endpoint!r} is no directory", remedy="Give --rdzv-endpoint=DIRECTORY.")


def path_of(request):
    return Path(request.endpoint, quote(request.run_id, safe="") + ".state")


def create(request):
    return State(path_of(request))


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
