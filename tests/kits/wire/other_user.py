"""Clients of a store that are processes of another user of this machine."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - for names of hosts: the other user may not be able to read where Python is
import multiprocessing
import os
import socket
from typing import Any

from kits.wire import wire_client as wire

NOBODY = 65534

Where = str | tuple[str, int]
"""The path of a Unix socket, or where a TCP port is."""


def asked(where: Where, uid: int | None = None, *, said: bytes = wire.validate() + wire.ping(7)) -> object:
    """What a client with that uid, in a process of its own, is told there; the name of the error if it gets one.

    Without something ``said`` to which there is an answer, it leaves at once.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_ask, args=(where, uid, said, there))
    process.start()
    try:
        assert here.poll(60)
        return here.recv()
    finally:
        process.join(60)
        process.close()
        here.close()
        there.close()


def _ask(where: Where, uid: int | None, said: bytes, pipe: Any) -> None:
    if uid is not None:
        os.setgid(uid)
        os.setuid(uid)
    try:
        with socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET) as client:
            client.settimeout(60)
            client.connect("\0" + where[1:] if isinstance(where, str) and where.startswith("@") else where)
            client.sendall(said)
            answer: object = client.recv(4) if said.endswith(wire.ping(7)) else b""
    except OSError as error:
        answer = type(error).__name__
    pipe.send(answer)
