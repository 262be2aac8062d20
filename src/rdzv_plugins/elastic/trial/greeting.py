"""How two nodes of a trial begin: each proves that it was given the trial's secret, and says who it is.

The dialled node speaks first, so that a process that stands still is found out: its kernel accepts the connection and
says nothing. Each proof is an HMAC of the other's random number, so no part of it can be reused.
"""

from __future__ import annotations

import hmac
import os
import socket as sockets
import struct
from collections.abc import AsyncIterator

from rdzv_plugins.elastic.trial.sockets import Broken, receive, send
from rdzv_plugins.elastic.trial_keys import Task

DIAL, TEST = 1, 2
"""What a connection is for."""
_MAGIC = b"rdzvtry1"
_RANDOM = 16
_HELLO = struct.Struct("!IB")
_PROOF = 32


async def greet(socket: sockets.socket, task: Task, to: int, kind: int) -> None:
    """Begin as the node that dials node ``to``. Raises ``Broken`` if somebody else answers."""
    theirs = await receive(socket, len(_MAGIC) + _RANDOM)
    if not theirs.startswith(_MAGIC):
        raise Broken("something other than a node of this job answers there")
    mine, who = os.urandom(_RANDOM), _HELLO.pack(task.me, kind)
    await send(socket, mine + who + _proof(task, b"dial", theirs[len(_MAGIC) :], mine, who, to))
    if await receive(socket, _PROOF) != _proof(task, b"accept", mine, theirs[len(_MAGIC) :], who, to):
        raise Broken("a different node than expected answers there")


async def welcome(socket: sockets.socket, tasks: AsyncIterator[Task]) -> tuple[Task, int, int]:
    """Begin as the node that was dialled. Returns the task, who dials, and what for.

    ``tasks`` yields that of this node and those that follow. One may arrive later than those of others, so a caller
    that turns out to be no stranger is made to wait. Set a time limit: a stranger would wait for ever.
    """
    mine = os.urandom(_RANDOM)
    await send(socket, _MAGIC + mine)
    said = await receive(socket, _RANDOM + _HELLO.size + _PROOF)
    theirs, who, proof = said[:_RANDOM], said[_RANDOM : _RANDOM + _HELLO.size], said[-_PROOF:]
    async for task in tasks:
        if hmac.compare_digest(proof, _proof(task, b"dial", mine, theirs, who, task.me)):
            await send(socket, _proof(task, b"accept", theirs, mine, who, task.me))
            index, kind = _HELLO.unpack(who)
            return task, index, kind
    raise Broken("a stranger, or a node of another trial")


def _proof(task: Task, role: bytes, one: bytes, other: bytes, who: bytes, to: int) -> bytes:
    text = b"%s %s %s %d " % (role, task.stage.encode(), who, to)
    return hmac.digest(task.trial.encode(), text + one + other, "sha256")
