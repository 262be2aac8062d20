"""A state in a file of a directory that all nodes share: right in everything. Each toy puts one fault into it."""

import fcntl
import json
import os
import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from toy_registry import toy

from rdzv_plugins import Backend, Capability, option
from rdzv_plugins.backends.c10d import C10dOptions
from rdzv_plugins.backends.c10d import validate as validate_c10d
from rdzv_plugins.dynamic.options import DynamicSettings
from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.errors import RendezvousFailed, UsageError


@toy("state-right")
class State:
    """A ``RendezvousBackend``. The token is the number of writes so far. No fault: what is found is due to one."""

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


def backend(name, state=State, **changes):
    """The descriptor; ``changes`` replace its fields."""
    right = Backend(
        name=name,
        summary="a file in a directory that all nodes share",
        create=lambda request: state(Path(request.endpoint, quote(request.run_id, safe="") + ".state")),
        capabilities=frozenset({Capability.ELASTIC}),
        options=DynamicSettings,
        validate=validate,
    )
    return replace(right, **changes)


@toy("state-ignores-token")
class Careless(State):
    """Every write is done, with whatever token."""

    def set_state(self, state, token=None):
        held = self.get_state()
        return super().set_state(state, held[1] if held else None)


@toy("state-loses-update")
class Racing(State):
    """Between the look at the token and the write, others may write."""

    def set_state(self, state, token=None):
        held = self.get_state()
        if token != (held[1] if held else None):
            return (*held, False) if held else None
        time.sleep(0.001)
        count = (token or 0) + 1
        with self.locked():
            self.write(json.dumps({"count": count, "state": state.hex()}))
        return state, count, True


@toy("state-torn-write")
class Torn(State):
    """It writes in place, so who is killed in between leaves a part of a state, or none."""

    def write(self, text):
        with open(self._path, "w") as file:
            file.write(text[: len(text) // 2])
            file.flush()
            time.sleep(0.02)  # on a busy machine, and the tests are to find it on any
            file.write(text[len(text) // 2 :])


@toy("state-empty-when-lost")
def empty_when_lost(name):
    """A state that cannot be reached is said to be none, as if nobody had written one."""

    class Optimist:
        name = "toy"

        def __init__(self, inner):
            self._inner = inner
            self.set_state = inner.set_state

        def get_state(self):
            try:
                return self._inner.get_state()
            except Exception:
                return None

    def create(request):
        from rdzv_plugins.backends import c10d

        return Optimist(c10d.rdzv_register_backends().create(request))

    return Backend(name=name, summary="a toy", create=create, options=C10dOptions, validate=validate_c10d)


# faults of a plug-in

CHANGED = {
    # what ``create`` returns is no backend
    "create-returns-dict": {"create": lambda request: {"get_state": None, "set_state": None}},
    # it promises that a given node rank counts, and torch's rendezvous assigns the ranks
    "rendezvous-ignores-rank": {"capabilities": frozenset({Capability.ELASTIC, Capability.NODE_RANK})},
    # a name with capitals, an empty summary, an alias that is none
    "plugin-badly-named": {"name": "Plugin_Badly_Named", "summary": "", "aliases": ("also bad",)},
    # its entry point has another name than its backend: torchrun knows it by that one
    "plugin-of-another-name": {"name": "the-name-of-the-backend"},
    # all runs at an endpoint share one state
    "state-mixes-runs": {"create": lambda request: State(Path(request.endpoint, "state"))},
}
for each, fields in CHANGED.items():
    toy(each)(lambda name, fields=fields: backend(**{"name": name} | fields))


@toy("plugin-validate-raises")
def validate_raises(name):
    """It refuses a wrong endpoint by a ValueError: no message of the launcher's, and no remedy."""

    def fails(request):
        if not os.path.isdir(request.endpoint):
            raise ValueError("no directory")

    return backend(name, validate=fails)


@toy("plugin-hides-endpoint")
def hides_endpoint(name):
    """Its endpoint is HOST:PORT, it dials for one second, and says neither whom nor what to do."""

    def create(request):
        endpoint = parse_endpoint(request.endpoint, None)
        try:
            return socket.create_connection((endpoint.host, endpoint.port), timeout=1)
        except OSError:
            raise RendezvousFailed("could not connect") from None

    return backend(name, create=create, validate=lambda request: parse_endpoint(request.endpoint, None) and None)


@dataclass(frozen=True)
class Options(DynamicSettings):
    """No help, a type that text cannot give, a default that its own text does not give."""

    silent: int = option(1, help="")
    listed: list = option(None, help="Text cannot give a list: it becomes one letter by letter.")  # noqa: RUF009
    seconds: int = option(2.5, help="Text cannot give half a second.")


@toy("plugin-options-unexplained")
def options_unexplained(name):
    return backend(name, options=Options)
