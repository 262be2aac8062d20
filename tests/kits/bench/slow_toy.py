"""Two backends of a stranger that are alike, but for a delay in one of them. For `install` of bench_kit."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rdzv_plugins import Backend, hookimpl
from rdzv_plugins.testing import Harness

DELAY_S = 1.0


@dataclass(frozen=True)
class Info:
    """A place in the round."""

    rank: int
    world_size: int
    store: Any = None
    bootstrap_store_info: Any = None


class Handler:
    """Nodes meet in a directory, once."""

    use_agent_store = False

    def __init__(self, request: Any, delay_s: float) -> None:
        self._request, self._delay_s = request, delay_s
        self._id = uuid.uuid4().hex

    def get_backend(self) -> str:
        return "toy"

    def next_rendezvous(self) -> Info:
        time.sleep(self._delay_s)
        directory, wanted = Path(self._request.endpoint), self._request.max_nodes
        (directory / self._id).touch()
        while len(members := sorted(file.name for file in directory.iterdir())) < wanted:
            time.sleep(0.01)
        return Info(members.index(self._id), wanted)

    def num_nodes_waiting(self) -> int:
        return 0

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def get_run_id(self) -> str:
        return str(self._request.run_id)

    def shutdown(self) -> bool:
        return True


class ToyHarness(Harness):
    """Of both."""

    kind = "handler"
    dialled = False

    def endpoint(self, directory: Path) -> str:
        return str(directory)


@hookimpl
def rdzv_register_backends() -> list[Backend]:
    """The hook through which they are found."""
    return [
        Backend(name=name, summary="nodes meet in a directory", create=partial(Handler, delay_s=delay_s))
        for name, delay_s in (("prompt", 0.0), ("slow", DELAY_S))
    ]
