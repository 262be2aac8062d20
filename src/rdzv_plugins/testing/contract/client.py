"""A node's backend as a process of its own, to be killed, stopped or served by. Run by its path: no package is loaded.

Its argument is JSON: ``backend``, ``run_id``, ``endpoint``, ``conf`` and ``mode``:

``serve``: makes the backend, says whether that serves the endpoint, and nothing more.
``session``: opens a session of ``ttl`` seconds and writes ``key`` as ephemeral; says when it is lost.
With ``child``, ``fork`` or ``spawn``, it leaves a process behind that has inherited what it could.
``count``: ``writers`` forks of it, each with a backend of its own, add 1 to the number in the state ``times`` times.
``write``: for each line of its input, ``times`` at most, a fork of it writes as fast as it can until it is killed, and
this process says which write was the last that it knows to be done.

It prints lines of JSON, the first when it is ready, and ends when its input does (``count``: when it is done).
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

_BIG = 32 * 1024
_KILLED_WITHIN_S = 0.02
_LATEST_S = 180
"""A writer is gone after this many seconds, even if nobody is left to kill it."""


def maker_of(options: dict[str, Any]) -> Callable[[], Any]:
    """Return a maker of a backend, found by name through the plug-in host, as in a launch.

    It makes no thread itself.
    """
    from rdzv_plugins.assemble.create import prepare
    from rdzv_plugins.host import PluginHost
    from rdzv_plugins.interfaces import Request

    entry = PluginHost.load().catalog.find(options["backend"])
    request = Request(
        backend=options["backend"],
        run_id=options["run_id"],
        endpoint=options["endpoint"],
        min_nodes=1,
        max_nodes=8,
        nproc_per_node=1,
        conf=MappingProxyType(options["conf"]),
    )
    return functools.partial(entry.backend.create, prepare(entry, request))


def say(**what: object) -> None:
    """Write one line to whoever has started this process."""
    print(json.dumps(what), flush=True)


def session(options: dict[str, Any], backend: Any) -> None:
    """Mode ``session``: write a key in a session, and hold it."""
    opened = backend.open_session(options["ttl"], on_lost=lambda error: say(lost=str(error)), timeout=60)
    opened.put({options["key"]: b"here"}, ephemeral=True, timeout=60)
    if options["child"] == "fork":
        if os.fork() == 0:
            sys.stdin.read()
            os._exit(0)
    elif options["child"] == "spawn":
        subprocess.Popen(["cat"], close_fds=False)
    say(ready=True, ttl=opened.ttl)


def count(options: dict[str, Any]) -> None:
    """Mode ``count``. Forks before anything else has a thread."""
    if options["preload"]:
        __import__(options["preload"])
    children = []
    ready, unready = os.pipe()  # all begin at once, when the last of them has closed its end
    for _ in range(options["writers"]):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                backend = maker_of(options)()
                os.close(unready)
                os.read(ready, 1)
                add(backend, options["times"])
                status = 0
            finally:
                if status:
                    sys.excepthook(*sys.exc_info())
                    sys.stderr.flush()
                os._exit(status)
        children.append(child)
    os.close(unready)
    say(statuses=[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])


def add(backend: Any, times: int) -> None:
    """One writer of mode ``count``: reads, adds 1, and writes if nobody else has."""
    for _ in range(times):
        while True:
            held = backend.get_state()
            state, token = held if held is not None else (b"0", None)
            # no two write the same: torch's c10d takes another's state for its own if they are equal
            mine = b"%d, written by process %d" % (int(state.partition(b",")[0]) + 1, os.getpid())
            written = backend.set_state(mine, token)
            if written is not None and written[2]:
                break


def numbered(number: int) -> bytes:
    """A large state, different for each number and process, from which one can tell if it is incomplete."""
    return b"%d,%d," % (number, os.getpid()) + bytes([number % 256]) * _BIG


def number_of(state: bytes) -> int | None:
    """The number of such a state; None if it is not one."""
    head, _, rest = state.partition(b",")
    number = int(head) if head.isdigit() else -1
    return number if rest.partition(b",")[2] == bytes([number % 256]) * _BIG else None


def write(options: dict[str, Any]) -> None:
    """Mode ``write``. Forks while nothing here has a thread: only its forks have a backend."""
    if options["preload"]:
        __import__(options["preload"])
    make = maker_of(options)
    say(ready=True)
    for _ in range(options["times"]):
        if not sys.stdin.readline():
            return
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                signal.alarm(_LATEST_S)
                write_on(make(), writing)
            finally:
                sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading, "rb") as said:
            done = said.readline()
            time.sleep(random.uniform(0, _KILLED_WITHIN_S))
            os.kill(child, signal.SIGKILL)
            done = (said.read().split() or [done])[-1]
        say(last=int(done or 0), code=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def write_on(backend: Any, report: int) -> None:
    """One writer of mode ``write``. Reports each number when it is written. Never returns."""
    state, token = backend.get_state()
    number = number_of(state) or 0
    while True:
        number += 1
        written = backend.set_state(numbered(number), token)
        assert written is not None and written[2], "refused, though nobody else writes"  # noqa: PT018
        token = written[1]
        os.write(report, b"%d\n" % number)


def main() -> None:
    """Do what the options in the first argument say; see the module."""
    options = json.loads(sys.argv[1])
    if options["mode"] == "count":
        count(options)
        return
    if options["mode"] == "write":
        write(options)
        return
    backend = maker_of(options)()
    if options["mode"] == "session":
        session(options, backend)
    else:
        say(ready=True, hosts=bool(getattr(backend, "hosts_service", False)))
    sys.stdin.read()
    if hasattr(backend, "close"):
        backend.close()


if __name__ == "__main__":
    sys.path.pop(0)  # this directory: its modules belong to a package
    main()
