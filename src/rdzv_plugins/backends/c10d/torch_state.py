"""torch's state of a dynamic rendezvous, read without torch."""

from __future__ import annotations

import base64
import datetime
import io
import pickle
from typing import Any

_NONE_YET = b"Y2FuaW1hZGFt"
"""What torch's backend writes before there is a state."""


class Node:
    """Stands in for torch's ``_NodeDesc``."""

    addr = ""
    pid = 0

    def __lt__(self, other: Node) -> bool:
        return str(self.addr) < str(other.addr)


class State:
    """Stands in for torch's ``_RendezvousState``."""

    round = 0
    complete = closed = False

    def __init__(self) -> None:
        self.participants: dict[Node, int] = {}
        self.wait_list: set[Node] = set()
        self.redundancy_list: set[Node] = set()


_TORCHS = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
_KNOWN: dict[tuple[str, str], Any] = {
    (_TORCHS, "_RendezvousState"): State,
    (_TORCHS, "_NodeDesc"): Node,
    ("datetime", "datetime"): datetime.datetime,
    ("datetime", "timedelta"): datetime.timedelta,
    ("datetime", "timezone"): datetime.timezone,
}


class _Unpickler(pickle.Unpickler):
    """Makes only what a state of torch's consists of: whoever wrote it must not be able to run code here."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a rendezvous' state") from None


def load_state(held: bytes) -> State:
    """Load the state from the value of its key. Raises ``ValueError`` for anything else."""
    if held == _NONE_YET:
        return State()
    try:
        state = _Unpickler(io.BytesIO(base64.b64decode(held, validate=True))).load()
    except Exception as error:  # pickle promises no more specific error
        raise ValueError(f"torch's state cannot be read: {error}") from None
    if not isinstance(state, State):
        raise ValueError(f"torch's state is of type {type(state).__name__}")
    return state
