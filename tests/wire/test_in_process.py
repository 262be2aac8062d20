"""The server as a part of a Python process: the GIL, forks, signals, the end of the interpreter, the log."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.wire.attack_kit import Workers, repeated
from kits.wire.processes import outputs, read_line, say, spawned
from kits.wire.wire_client import WAIT, Raw, keyed, multi_set

from rdzv_plugins.kvstore.native.server import StoreServer

LOGGER = "rdzv_plugins.kvstore.native.server"


def running(source: str) -> AbstractContextManager[list[subprocess.Popen[str]]]:
    command = [sys.executable, "-W", "error", "-c", f"from {LOGGER} import StoreServer\n" + source]
    return spawned([command], PYTHONPATH=os.pathsep.join(sys.path))


SERVE = "server = StoreServer('127.0.0.1', threads=4)\nprint(server.port, flush=True)\n"


@pytest.mark.parametrize(
    "end",
    [
        "input(); del server",
        "input(); raise SystemExit(0)",
        "global_ = [server]; global_.append(global_); input()",
        "input(); server.close(); server.close(); del server",
        "keyspace = server.open_keyspace('k'); del server; input()",
    ],
)
def test_the_interpreter_ends_while_clients_wait(end: str) -> None:
    with running(SERVE + end) as (process,):
        port = int(read_line(process))
        with Raw(port) if "keyspace" not in end else nullcontext() as waiting:
            if waiting:
                waiting.do(keyed(WAIT, [b"/never"]))
            say(process, "")
            assert outputs([process]) == [""]
            assert waiting is None or waiting.until_close() == b""


def test_loop_threads_leave_signals_to_the_program() -> None:
    with StoreServer("127.0.0.1", threads=4):
        tasks = [(task / "comm", task / "status") for task in Path("/proc/self/task").iterdir()]
        loops = [status for comm, status in tasks if re.match(r"rdzv-store-\d", comm.read_text())]
        masks = [int(status.read_text().split("SigBlk:")[1].split()[0], 16) for status in loops]
    assert len(masks) >= 4
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        assert all(mask >> (number - 1) & 1 for mask in masks)


FORKED = """
import ctypes, os, sys, time
keyspace = server.open_keyspace('k')
print(keyspace.port, flush=True)
input()
if os.fork() == 0:
    sys.exit(7)  # the ordinary way out, which runs all that is registered for the end of the interpreter
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
pid = os.fork()
if pid == 0:
    ctypes.CDLL(None).prctl(1, 9)  # die with the parent
    time.sleep(600)  # has copies of all sockets
    os._exit(0)
try:
    print('forked', flush=True)
    while (command := input()) != 'end':
        print(eval(command), flush=True)
finally:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
server.close()
"""


def ask(process: subprocess.Popen[str], command: str) -> str:
    say(process, command)
    return read_line(process).strip()


def test_forked_children_leave_the_server_alone_and_keep_nothing_open() -> None:
    """Neither one that ends, nor one that lives on: not the connections that the server closes, and not the ports."""
    with running(SERVE + FORKED) as (process,):
        port, other = int(read_line(process)), int(read_line(process))
        waiting, leaving, bad = Raw(other), [Raw(port) for _ in range(10)], Raw(port)
        waiting.do(keyed(WAIT, [b"/never"]))
        assert ask(process, "") == "forked"
        with Workers(port, clients=8) as bystanders:
            bystanders.advance(5)
            for client in leaving:
                client.close()
            bad.send(b"\xff")
            assert bad.until_close() == b""
            assert re.fullmatch(r".*: unknown request\n", read_line(process))  # of its log
            bystanders.advance(20)
            assert ask(process, "keyspace.close()") == "None"
            assert waiting.until_close() == b""
            with socket.socket() as client:
                assert client.connect_ex(("127.0.0.1", other)) != 0
            bystanders.advance(20)
            eventually(lambda: ask(process, "server.stats()['connections']['open']") == "8", lambda: "still open")
        for client in (waiting, bad):
            client.close()
        eventually(lambda: ask(process, "server.stats()['connections']['open']") == "0", lambda: "still open")
        say(process, "end")
        assert outputs([process]) == [""]


@pytest.mark.parametrize("call", ["stats", "wipe", "close_keyspace", "close"])
def test_calls_that_may_block_release_the_gil(call: str) -> None:
    keys = [b"/key/%d" % number for number in range(20_000)]

    def moved() -> bool:
        with StoreServer("127.0.0.1", threads=1) as server, Raw(server.port) as client:
            client.do(multi_set((key, b"") for key in keys) + keyed(WAIT, [b"/absent" + key for key in keys]))
            spare = server.open_keyspace("spare")
            calls: dict[str, Callable[[], object]] = {
                "stats": server.stats,
                "wipe": server.first.wipe,
                "close_keyspace": spare.close,
                "close": server.close,
            }
            before = count()
            calls[call]()
            return count() > before

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # no thread has to give the GIL up to another while it runs Python
    try:
        with repeated(lambda: time.sleep(0)) as count:  # which gives it up: it goes on when it gets it
            eventually(moved)  # waking up may take longer than the call
    finally:
        sys.setswitchinterval(interval)
