"""``worker_transport=unix`` for scripts that know nothing of it: their env:// store goes over the agent's Unix socket.

torch calls ``install`` in every process that imports torch (entry points of group ``torch.backends``). Without
``RDZV_STORE_SOCKET`` that is one look at the environment, and nothing is changed. Whatever goes wrong here must
neither keep torch from being imported nor a job from being started: the store is reached by MASTER_ADDR and MASTER_PORT
then, as without this module, and one line on stderr says so.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

SOCKET = "RDZV_STORE_SOCKET"
"""Where the store of this worker's round listens: a path, or ``@`` and the name of an abstract socket."""
PORT = "RDZV_STORE_PORT"
"""The MASTER_PORT of the same store. Another launcher that a worker starts hands our variables down to workers with
another store; theirs is none of ours."""

Rendezvous = Iterator[tuple[Any, int, int]]
Handler = Callable[..., Rendezvous]


def install() -> None:
    """Have env:// use the socket, if the agent has given one. Called by torch; never raises an ``Exception``."""
    if not os.environ.get(SOCKET):
        return
    try:
        from torch.distributed.rendezvous import _rendezvous_handlers as handlers

        handlers["env"] = _over_socket(handlers["env"])
    except Exception as error:
        _say(f"this torch is not prepared for it ({type(error).__name__}: {error})")


def _over_socket(handler: Handler) -> Handler:
    """torch's handler, with the store that it makes moved to the socket."""

    def over_socket(url: str, **options: Any) -> Rendezvous:
        path = os.environ.get(SOCKET, "")
        before = None
        if path and _is_ours():
            from rdzv_plugins.kvstore.unix_transport import open_sockets

            try:
                before = open_sockets()
            except OSError as error:
                _say(f"there is no /proc here ({error.strerror})")
        for store, rank, world_size in handler(url, **options):
            if before is not None:
                _move(store, path, before)
            yield store, rank, world_size

    return over_socket


def _move(store: Any, path: str, before: frozenset[str]) -> None:
    from rdzv_plugins.kvstore.unix_transport import NotMoved, move

    try:
        move(store, path, before)
    except NotMoved as error:
        _say(str(error))
    except Exception as error:  # a store of another kind, for example: somebody else has replaced the handler, too
        _say(f"{type(error).__name__}: {error}")


def _is_ours() -> bool:
    """Whether env:// leads to the store that the socket leads to, with this process as a mere client."""
    served_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return served_by_agent and os.environ.get(PORT, "") == os.environ.get("MASTER_PORT")


def _say(why: str) -> None:
    where = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    path = os.environ.get(SOCKET, "")
    with contextlib.suppress(OSError, ValueError):  # a stderr that is gone must not matter
        print(
            f"rdzv-plugins: rank {os.environ.get('RANK', '?')} reaches the store at {where}, not by the Unix socket "
            f"{path}: {why}",
            file=sys.stderr,
            flush=True,
        )
