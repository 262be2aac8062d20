"""What is read in /proc: of real processes, with the kernel's lists of children and without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rdzv_plugins.linux import children
from rdzv_plugins.linux.children import children_now
from rdzv_plugins.linux.process_stat import read_stat

NAME = "a) Z 1 (b c)"
NOBODY = 2**22 + 1
_CHILD = f"""
import subprocess, sys, threading
from rdzv_plugins.linux import prctl
prctl.set_name({NAME!r})
begun = []
def begin():
    begun.append(subprocess.Popen(["sleep", "1000"]))
    sys.stdin.read()
thread = threading.Thread(target=begin)
thread.start()
ended = subprocess.Popen(["true"])
while not begun: pass
print(thread.native_id, begun[0].pid, ended.pid, flush=True)
thread.join()
begun[0].kill()
"""


@pytest.fixture(scope="module")
def child() -> Iterator[tuple[int, int, int, int]]:
    """A process of an odd name, a thread of it, a child that the thread has started, and one that has ended."""
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as process:
        try:
            assert process.stdout is not None
            thread, one, ended = map(int, process.stdout.readline().split())
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            yield process.pid, thread, one, ended
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_process_whose_name_looks_like_fields(child: tuple[int, int, int, int]) -> None:
    stat = read_stat(child[0])
    assert stat is not None
    assert (stat.parent, stat.session, stat.lives, stat.has_terminal) == (os.getpid(), child[0], True, False)
    assert stat.state in "RS"
    assert stat.cpu_ticks > 0
    again = read_stat(child[0])
    assert again is not None
    assert again.started == stat.started


def test_a_thread_a_zombie_and_nobody(child: tuple[int, int, int, int]) -> None:
    pid, thread, one, ended = child
    of_thread, of_one = read_stat(pid, thread), read_stat(one)
    assert of_thread is not None
    assert of_one is not None
    assert of_thread.lives
    assert of_one.parent == pid
    while (zombie := read_stat(ended)) is not None and zombie.lives:
        pass  # it is about to end
    assert zombie is not None
    assert zombie.state == "Z"
    assert read_stat(NOBODY) is None
    assert read_stat(pid, NOBODY) is None


def test_children_by_the_lists_of_the_kernel(child: tuple[int, int, int, int], monkeypatch) -> None:
    assert children.LISTED, "this kernel has none: the test below is what counts"
    monkeypatch.setattr(children, "all_pids", None)  # nobody else is looked at
    monkeypatch.setattr(children, "read_stat", None)
    _, _, *its_own = child
    assert sorted(children_now()(child[0])) == sorted(its_own)
    assert children_now()(its_own[0]) == []
    assert children_now()(NOBODY) == []


def test_children_by_asking_everybody(child: tuple[int, int, int, int], monkeypatch) -> None:
    monkeypatch.setattr(children, "LISTED", False)
    monkeypatch.setattr(children, "_listed", None)
    pids_of = children_now()
    _, _, *its_own = child
    assert sorted(pids_of(child[0])) == sorted(its_own)
    assert pids_of(its_own[0]) == []
    assert child[0] in pids_of(os.getpid())
