"""Backends of a stranger, for `install` of bench_kit: one that may go wrong, and two alike but for a delay in one."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rdzv_plugins import Backend, Capability, hookimpl, option
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.testing import Harness

DELAY_S = 1.0


@dataclass(frozen=True)
class OddOptions:
    """What goes wrong."""

    how: str = option("works", help="works, refuses, breaks or waits; nowhere and unstarted are the harness's.")


@dataclass(frozen=True)
class Info:
    """A place in a round."""

    rank: int
    world_size: int
    store: Any = None
    bootstrap_store_info: Any = None


class Handler:
    """A node is in a round while its process lives: whoever has lost one is to join the next."""

    use_agent_store = False

    def __init__(self, request: Any, delay_s: float = 0.0) -> None:
        self._request, self._delay_s = request, delay_s
        self._name = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._round, self._told = -1, True

    def get_backend(self) -> str:
        return "odd"

    def next_rendezvous(self) -> Info:
        how = getattr(self._request.options, "how", "works")
        if how == "breaks":
            raise KeyError("nobody knows")
        if how == "waits":
            threading.Event().wait()
        if not self._told:
            raise RdzvError("I have not said that this node is to join again")
        time.sleep(self._delay_s)
        self._told = False
        wanted = self._request.max_nodes - (self._round >= 0)
        self._round += 1
        self._members().mkdir(exist_ok=True)
        (self._members() / self._name).touch()
        while len(members := sorted(file.name for file in self._members().iterdir())) < wanted:
            time.sleep(0.01)
        return Info(members.index(self._name), len(members))

    def num_nodes_waiting(self) -> int:
        pids = [file.name.partition("-")[0] for file in self._members().iterdir()]
        self._told = not all(Path("/proc", pid).exists() for pid in pids)
        return int(self._told)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def get_run_id(self) -> str:
        return str(self._request.run_id)

    def shutdown(self) -> bool:
        return True

    def _members(self) -> Path:
        return Path(self._request.endpoint, str(self._round))


def create(request: Any) -> Handler:
    """As --rdzv-conf odd=how=... says."""
    if request.options.how == "refuses":
        raise RdzvError("no luck today", remedy="Come back tomorrow.")
    return Handler(request)


class DirectoryHarness(Harness):
    """Nodes meet in a directory."""

    kind = "handler"
    dialled = False

    def endpoint(self, directory: Path) -> str:
        return str(directory)


class OddHarness(DirectoryHarness):
    """Beside the nodes is a process that nobody but the harness ends."""

    backend = "odd"
    _beside: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.conf.get("how") == "unstarted":
            raise OSError("no room")
        self._beside = subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL)

    def close(self) -> None:
        if self._beside is not None:
            self._beside.kill()
            self._beside.wait()

    def endpoint(self, directory: Path) -> str:
        if self.conf.get("how") == "nowhere":
            raise KeyError("no address")
        return super().endpoint(directory)


@hookimpl
def rdzv_register_backends() -> list[Backend]:
    """The hook through which they are found."""
    meet = "nodes meet in a directory"
    elastic = frozenset({Capability.ELASTIC})
    return [
        Backend(name="odd", summary=f"{meet}, or do not", create=create, capabilities=elastic, options=OddOptions),
        *(
            Backend(name=name, summary=meet, create=partial(Handler, delay_s=delay_s))
            for name, delay_s in (("prompt", 0.0), ("slow", DELAY_S))
        ),
    ]
