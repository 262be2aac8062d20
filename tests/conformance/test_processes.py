"""The processes of a run: servers and all that they start are killed with it, and none of its own outlives it."""

from __future__ import annotations

import os
import random
import select
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kits.eventually import eventually

from rdzv_plugins.errors import RdzvError
from rdzv_plugins.system.processes import read_stat
from rdzv_plugins.testing import ServerProcess, free_port
from rdzv_plugins.testing.nodes import Pending
from rdzv_plugins.testing.parts import frozen

TESTS = """
import sys, time
from pathlib import Path
from rdzv_plugins.testing import ServerProcess, free_port
from rdzv_plugins.testing.builtin import ParallelHarness
from rdzv_plugins.testing.nodes import NodesJob

here, port = Path(sys.argv[1]), free_port()
server = ServerProcess([sys.executable, "-m", "http.server", str(port), "--bind=127.0.0.1"], port, log=here / "log",
                       keeps_data=False)
server.start()
with ParallelHarness() as harness, NodesJob(harness, here, "3") as job:
    nodes = [job.node() for _ in range(3)]
    nodes[0].join()
    nodes[1].create()
    nodes[2].freeze()
    print(*server.pids, *(node.pid for node in nodes), flush=True)
    time.sleep(600)
"""
FAMILY = """
import os, signal, sys
from http.server import HTTPServer, SimpleHTTPRequestHandler
server = HTTPServer(("127.0.0.1", int(sys.argv[1])), SimpleHTTPRequestHandler)
if os.fork():
    if os.fork():
        os.wait()
        signal.pause()
    os.setsid()  # a daemon: nobody's child by now
    if os.fork():
        os._exit(0)
    signal.pause()
os.setsid()
server.serve_forever()
"""


def server(directory: Path, port: int, program: str) -> ServerProcess:
    return ServerProcess([sys.executable, "-c", program, str(port)], port, log=directory / "log", keeps_data=False)


def wait_for_end(pid: int) -> bool:
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([ended], [], [], 60)[0])
    finally:
        os.close(ended)


def all_there(pids: tuple[int, ...]) -> tuple[int, ...]:
    """The three that stay, once they are in sessions of their own: the daemon is not the leader of its one."""
    sessions = [os.getsid(pid) for pid in pids]
    return pids if len(set(sessions)) == len(pids) == 3 and not set(sessions) <= set(pids) else ()


def test_children_in_sessions_of_their_own_are_stopped_and_killed_with_it(tmp_path: Path) -> None:
    one = server(tmp_path, free_port(), FAMILY)
    one.start()
    try:
        pids = eventually(lambda: all_there(one.pids))
        with frozen(one):
            assert [read_stat(pid).state for pid in pids] == ["T"] * 3
        one.kill()
        assert one.pids == ()
        assert all(wait_for_end(pid) for pid in pids)
    finally:
        one.kill()


def test_one_that_does_not_start_says_its_last_words_and_somebody_else_is_not_taken_for_it(tmp_path: Path) -> None:
    fails = "raise SystemExit('no luck today')"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for each, said in (
            (server(tmp_path, free_port(), fails), r"ended with code 1\n  \| no luck today"),
            (server(tmp_path, port, fails), rf"another process uses 127.0.0.1:{port} \(Address already in use\)"),
        ):
            with pytest.raises(RdzvError, match=said):
                each.start()
            assert each.pids == ()


def test_a_port_does_not_come_of_a_seed() -> None:
    def chosen() -> list[int]:
        random.seed(1)
        return [free_port() for _ in range(3)]

    before = random.getstate()
    try:
        assert chosen() != chosen()
    finally:
        random.setstate(before)


def test_nothing_outlives_a_run_of_tests_that_is_killed(tmp_path: Path) -> None:
    """A server, and nodes: one waits, one has begun, one stands still."""
    with subprocess.Popen([sys.executable, "-c", TESTS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout
        pids = [int(pid) for pid in tests.stdout.readline().split()]
        tests.kill()
    assert len(pids) == 4
    assert all(map(wait_for_end, pids))


def test_an_answer_that_comes_with_the_end_of_its_process_counts() -> None:
    def receive(timeout: float) -> bool:
        pending.answer.set_result(7)
        return False

    node: Any = SimpleNamespace(receive=receive)
    pending = Pending[int](node, "exit")
    assert pending.result() == 7
