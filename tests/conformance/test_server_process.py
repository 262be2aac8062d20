"""Servers of harnesses: they are gone with the tests, and come back at the same address when they are to."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from kits.eventually import eventually

from rdzv_plugins.errors import RdzvError
from rdzv_plugins.linux.process_stat import read_stat
from rdzv_plugins.testing import ServerProcess, free_port
from rdzv_plugins.testing.faults import frozen

HTTP = """
import http.server, sys
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
PARENT = """
import signal, sys
from pathlib import Path
from rdzv_plugins.testing import ServerProcess
server = ServerProcess([sys.executable, "-c", sys.argv[1], sys.argv[2]], int(sys.argv[2]), log=Path(sys.argv[3]),
                       keeps_data=False)
server.start()
print(*server.pids, flush=True)
signal.pause()
"""


def server(directory: Path, port: int, program: str = HTTP) -> ServerProcess:
    command = [sys.executable, "-c", program, str(port)]
    return ServerProcess(command, port, log=directory / "log", keeps_data=False)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for_end(pid: int) -> bool:
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([ended], [], [], 60)[0])
    finally:
        os.close(ended)


def test_killed_and_started_again_at_the_same_address(tmp_path: Path) -> None:
    port = free_port()
    one = server(tmp_path, port)
    assert one.pids == ()
    one.start()
    try:
        (pid,) = one.pids
        assert answers(port)
        one.kill()
        assert one.pids == ()
        assert not answers(port)
        one.start_again()
        assert one.pids not in ((), (pid,))
        assert answers(port)
    finally:
        one.kill()
    one.kill()  # harmless
    assert not answers(port)


def test_one_that_does_not_start_says_its_last_words_and_somebody_else_is_not_taken_for_it(tmp_path: Path) -> None:
    fails = "raise SystemExit('no luck today')"
    one = server(tmp_path, free_port(), fails)
    # somebody answers as soon as it has ended
    late = ServerProcess(
        [sys.executable, "-c", fails],
        free_port(),
        log=tmp_path / "log",
        keeps_data=False,
        ready=lambda: all(wait_for_end(pid) for pid in late.pids),
    )
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = server(tmp_path, port, fails)
        for each, said in (
            (one, r"ended with code 1\n  \| no luck today"),
            (late, r"ended with code 1\n  \| no luck today"),
            (taken, rf"another process serves 127.0.0.1:{port} \(Address already in use\)"),
        ):
            with pytest.raises(RdzvError, match=said):
                each.start()
            assert each.pids == ()


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


def test_a_port_does_not_come_of_a_seed() -> None:
    def chosen() -> list[int]:
        random.seed(1)
        return [free_port() for _ in range(3)]

    before = random.getstate()
    try:
        assert chosen() != chosen()
    finally:
        random.setstate(before)


def test_it_ends_when_the_tests_are_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, HTTP, str(free_port()), str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        assert wait_for_end(pid), "the server outlives the tests that have started it"
