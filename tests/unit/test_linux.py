"""What is read in /proc: of real processes, with the kernel's lists of children and without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from kits.eventually import eventually

from rdzv_plugins.system import processes
from rdzv_plugins.system.processes import children_now, read_stat

NAME = "a) Z 1 (b c)"
NOBODY = 2**22 + 1
_CHILD = f"""
import subprocess, sys, threading
from rdzv_plugins.system import prctl
prctl.set_name({NAME!r})
def begin():
    one, ended = subprocess.Popen(["sleep", "1000"]), subprocess.Popen(["true"])  # kept: else the second is waited for
    print(threading.get_native_id(), one.pid, ended.pid, flush=True)
    sys.stdin.read()
thread = threading.Thread(target=begin)
thread.start()
thread.join()
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
            yield process.pid, thread, one, ended
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_process_whose_name_looks_like_fields_a_thread_a_zombie_and_nobody(child: tuple[int, int, int, int]) -> None:
    pid, thread, one, ended = child
    stat, again, of_thread, of_one = read_stat(pid), read_stat(pid), read_stat(pid, thread), read_stat(one)
    assert stat is not None
    assert again is not None
    assert of_thread is not None
    assert of_one is not None
    assert (stat.parent, stat.session, stat.lives, stat.has_terminal) == (os.getpid(), pid, True, False)
    assert stat.state in "RS"
    assert stat.cpu_s > 0
    assert again.started == stat.started
    assert (of_thread.lives, of_one.parent) == (True, pid)
    eventually(lambda: (zombie := read_stat(ended)) is not None and (zombie.lives, zombie.state) == (False, "Z"))
    assert read_stat(NOBODY) is read_stat(pid, NOBODY) is None


@pytest.mark.parametrize("listed", [True, False])
def test_children_by_the_lists_of_the_kernel_and_by_asking_everybody(
    child: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    pid, _, *its_own = child
    assert processes.LISTED, "this kernel has no lists"
    if listed:
        monkeypatch.setattr(processes, "all_pids", None)  # nobody else is looked at
        monkeypatch.setattr(processes, "read_stat", None)
    else:
        monkeypatch.setattr(processes, "LISTED", False)
        monkeypatch.setattr(processes, "_listed", None)
    pids_of = children_now()
    assert sorted(pids_of(pid)) == sorted(its_own)
    assert pids_of(its_own[0]) == pids_of(NOBODY) == []
    assert pid in pids_of(os.getpid())
