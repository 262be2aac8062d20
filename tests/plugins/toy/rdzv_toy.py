"""A third-party backend in one file: the state lies in a file, its token is the number of writes so far.

Endpoint: a directory that all nodes share.
"""

import fcntl
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rdzv_plugins import Backend, Capability, hookimpl, option
from rdzv_plugins.errors import UsageError


@dataclass(frozen=True)
class ToyOptions:
    """Accepted by --rdzv-conf."""

    suffix: str = option("state", help="Ending of the state file's name.")
    mode: Literal["600", "640", "660"] = option("600", help="Permissions of the state file.")


class ToyBackend:
    """``rdzv_plugins.RendezvousBackend`` by its methods; no base class is needed."""

    name = "toy"

    def __init__(self, path, mode):
        self._path = path
        self._mode = mode

    def get_state(self):
        with self._locked() as file:
            return _read(file)

    def set_state(self, state, token=None):
        with self._locked() as file:
            held = _read(file)
            if token != (held[1] if held else None):
                return (*held, False) if held else None
            count = (token or 0) + 1
            file.seek(0)
            file.truncate()
            file.write(json.dumps({"count": count, "state": state.hex()}))
            return state, count, True

    @contextmanager
    def _locked(self):
        with open(os.open(self._path, os.O_RDWR | os.O_CREAT, self._mode), "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file


def _read(file):
    text = file.read()
    if not text:
        return None
    data = json.loads(text)
    return bytes.fromhex(data["state"]), data["count"]


def validate(request):
    """Called before anything starts."""
    if not os.path.isdir(request.endpoint):
        raise UsageError(
            f"backend 'toy' needs a directory, not {request.endpoint!r}", remedy="Give --rdzv-endpoint=DIRECTORY."
        )


def create(request):
    """Makes this node's view of the state."""
    options = request.options
    path = Path(request.endpoint, f"{request.run_id}.{options.suffix}")
    return ToyBackend(path, int(options.mode, 8))


@hookimpl
def rdzv_register_backends():
    """The hook through which the framework finds the backend."""
    return Backend(
        name="toy",
        aliases=("toy-file",),
        summary="a file in a directory that all nodes share",
        create=create,
        capabilities=frozenset({Capability.ELASTIC}),
        options=ToyOptions,
        validate=validate,
    )
