"""The program that forks: ``python -m rdzv_plugins.testing.forks.program FD MODULE ARGUMENT``.

It imports the module, which knows what is to be forked and has two functions:

* ``prepare(argument)`` imports what every fork needs, once. None of it may start a thread, which a fork would miss.
* ``become(parent, request, fds)`` is called in a new process, a fork of ``parent``, and makes it another one: with its
  own output, directory and variables. It returns what the process is to run; that returns the exit code, or ends the
  process by itself.

Each request is a byte on the control socket, with a file of JSON and the descriptors that the new process is given. The
answers are lists of JSON: a pid and ``null`` once a process has become what was asked for, a pid and its exit code
(negative for a signal) once it has ended. The program ends when the socket is closed, which the kernel does when the
process of the tests ends, however it ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import socket
import sys
from collections.abc import Mapping
from typing import Any, Protocol

MOST_FDS = 8


class Kind(Protocol):
    """What the module has to provide."""

    def prepare(self, argument: str) -> None: ...

    def become(self, parent: int, request: Mapping[str, Any], fds: list[int]) -> Any: ...


def serve(control: socket.socket, kind: Kind, argument: str) -> Any:
    """In the program this never returns; in the processes that it forks it returns the exit code."""
    _prepare(kind, argument)
    children: dict[int, int] = {}  # pids by the descriptors that tell of their ends
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready != control.fileno():
                poll.unregister(ready)
                os.close(ready)
                pid = children.pop(ready)
                _say(control, pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                continue
            data, fds, _, _ = socket.recv_fds(control, 1, MOST_FDS)
            if not data:
                os._exit(0)
            known, tells = os.pipe()
            parent, pid = os.getpid(), os.fork()
            if pid == 0:
                for each in (*children, known, control.detach()):
                    os.close(each)
                with open(fds[0], "rb") as file:
                    request = json.load(file)
                run = kind.become(parent, request, fds[1:])
                os.close(tells)
                return run()
            for each in (tells, *fds):
                os.close(each)
            os.read(known, 1)  # by its end: from now on /proc shows it as what it is
            os.close(known)
            children[ends := os.pidfd_open(pid)] = pid
            poll.register(ends, select.POLLIN)
            _say(control, pid, None)


def _prepare(kind: Kind, argument: str) -> None:
    name = "TORCH_CPP_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ[name] = "FATAL"  # as the launcher does for its own import
    gc.disable()  # it would look through everything that torch creates, again and again
    kind.prepare(argument)
    gc.freeze()
    gc.enable()
    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before


def _say(control: socket.socket, pid: int, code: int | None) -> None:
    control.send(json.dumps([pid, code]).encode())


if __name__ == "__main__":
    del sys.path[0]  # the directory in which the tests were started
    _kind: Any = importlib.import_module(sys.argv[2])
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1])), _kind, sys.argv[3]))
