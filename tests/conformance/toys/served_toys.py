"""A state in the memory of a service, right in everything, with its harness. A toy puts one fault into it.

``python served_toys.py PORT`` is the service: one request after the other.
"""

import contextlib
import sys
import tempfile
from multiprocessing.connection import Client, Listener
from pathlib import Path
from types import MappingProxyType

from toy_registry import toy

from rdzv_plugins import Backend, Capability
from rdzv_plugins.dynamic.options import DynamicSettings
from rdzv_plugins.endpoints import meeting_point
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.testing import Harness, ServerProcess, free_port


def serve(port):
    states = {}
    with Listener(("127.0.0.1", port)) as listener:
        while True:
            with listener.accept() as asking, contextlib.suppress(EOFError, OSError):  # who only looks if we are there
                run, state, token = asking.recv()
                held = states.get(run)
                written = state is not None and token == (held[1] if held else None)
                if written:
                    held = states[run] = state, (token or 0) + 1
                asking.send((held, written))


@toy("state-served")
class ServedState:
    """A ``RendezvousBackend``. The token is the number of writes so far."""

    name = "toy"

    def __init__(self, host, port, run_id):
        self._where, self._run = (host, port), run_id

    def get_state(self):
        return self._ask(None, None)[0]

    def set_state(self, state, token=None):
        held, written = self._ask(state, token)
        return (*held, written) if held else None

    def _ask(self, state, token):
        try:
            with Client(self._where) as connection:
                connection.send((self._run, state, token))
                return connection.recv()
        except (OSError, EOFError) as error:
            raise EndpointUnreachable(f"no state at {self._where}: {error!r}", remedy="Start its service.") from error


@toy("state-served-from-cache")
class Cached(ServedState):
    """While the service is away, what was read last is read again."""

    last = None

    def get_state(self):
        try:
            self.last = super().get_state()
        except EndpointUnreachable:
            pass
        return self.last


class ServedStateHarness(Harness):
    conf = MappingProxyType({"join_timeout": "60", "last_call_timeout": "2"})

    def start(self):
        self._directory = tempfile.TemporaryDirectory()
        port = free_port()
        log = Path(self._directory.name, "log")
        self.service = ServerProcess([sys.executable, __file__, str(port)], port, log=log, keeps_data=False)
        self.service.start()

    def close(self):
        self.service.kill()
        self._directory.cleanup()

    def endpoint(self, directory):
        return f"127.0.0.1:{self.service.port}"


def backend(name, state):
    """The descriptor of a backend whose ``create`` returns a ``state``."""

    def create(request):
        where = meeting_point(request, None)
        return state(where.host, where.port, request.run_id)

    return Backend(
        name=name,
        summary="a state in the memory of a service",
        create=create,
        capabilities=frozenset({Capability.ELASTIC}),
        options=DynamicSettings,
    )


if __name__ == "__main__":
    serve(int(sys.argv[1]))
