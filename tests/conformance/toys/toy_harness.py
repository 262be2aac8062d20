"""The harnesses of the toys: their names come from the entry point. No test of the suite needs more."""

import subprocess
import threading
from pathlib import Path

from rdzv_plugins.testing import Harness
from rdzv_plugins.testing.builtin import C10dHarness, ParallelHarness, StaticHarness


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

    conf = C10dHarness.conf


class CoordinationHarness(Harness):
    """A coordination backend that a node serves at HOST:PORT, as ``parallel``; with its options."""

    kind = "coordination"
    conf = ParallelHarness.conf


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
    conf = StaticHarness.conf


class BrokenHarness(DirectoryHarness):
    """It cannot be started."""

    def start(self):
        raise FileNotFoundError("/no/such/server")


class HarnessOfNoKind(Harness):
    kind = "lease"
