"""The harnesses of the toys: their names come from the entry point. No test of the suite needs more."""

import subprocess
import threading
from pathlib import Path
from types import MappingProxyType

from rdzv_plugins.testing import Harness

ELASTIC = MappingProxyType(
    {"ttl": "4", "timeout": "120", "last_call_timeout": "2", "linger": "2", "allow_same_host": "true"}
)
DYNAMIC = MappingProxyType(
    {
        "keep_alive_interval": "1",
        "keep_alive_max_attempt": "4",
        "join_timeout": "120",
        "last_call_timeout": "2",
        "linger": "2",
    }
)


class DirectoryHarness(Harness):
    """A state backend whose endpoint is a directory that all nodes share."""

    dialled = False
    wrong_endpoints = ("/no/such/directory",)

    def endpoint(self, directory):
        return str(directory)


class HangingHarness(DirectoryHarness):
    """Its first answer never comes: while a test is set up. It leaves a file ``hangs`` in the current directory."""

    def endpoint(self, directory):
        open("hangs", "w").close()
        threading.Event().wait()


class StateHarness(Harness):
    """A state backend that a node serves at HOST:PORT, as ``c10d``."""

    conf = DYNAMIC


class CoordinationHarness(Harness):
    """A coordination backend that a node serves at HOST:PORT, as ``parallel``; with its options."""

    kind = "coordination"
    conf = ELASTIC


class ServedHarness(CoordinationHarness):
    """The same, with a server beside it, in a session of its own; it leaves its pid in a file ``server``."""

    def start(self):
        self.server = subprocess.Popen(["sleep", "600"], start_new_session=True)
        Path("server").write_text(str(self.server.pid))

    def close(self):
        self.server.kill()
        self.server.wait()


class HandlerHarness(Harness):
    """A handler of its own, whose node rank 0 serves HOST:PORT, as ``static``; with its options."""

    kind = "handler"
    conf = MappingProxyType({"timeout": "120", "linger": "2"})


class BrokenHarness(DirectoryHarness):
    """It cannot be started."""

    def start(self):
        raise FileNotFoundError("/no/such/server")


class HarnessOfNoKind(Harness):
    kind = "lease"
