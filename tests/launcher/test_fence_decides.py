"""What fence and guardian do when an agent stands still, or its session is silent or ends; and what workers hear."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kits.launcher.harness import WORKERS, wait_until

from rdzv_plugins.worker import round_holds, wait_until_round_holds


class Fenced:
    """fenced.py: an agent with one worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard, heard = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, WORKERS / "fenced.py", str(heard)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[heard],
        )
        os.close(heard)
        assert self.process.stdout is not None
        first = json.loads(self.process.stdout.readline())
        self.worker = first.pop("worker")
        for name, value in first.items():
            monkeypatch.setenv(name, value)

    def session(self, what: str) -> None:
        """The session does ``what`` now: the process may be stopped, and has heard it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert os.read(self.heard, 1) == b"."

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def wait_worker(self, states: str) -> None:
        wait_until(lambda: state_of(self.worker) in states, 30, lambda: f"the worker is {state_of(self.worker)}")

    def wait_holds(self, *, wanted: bool) -> None:
        wait_until(lambda: round_holds() is wanted, 30, lambda: f"round_holds() is not {wanted}")

    @property
    def guardian(self) -> int:
        """Its pid, 0 while there is none."""
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            for pid in path.read_text().split():
                with suppress(OSError):  # it has just ended
                    if Path(f"/proc/{pid}/comm").read_text() == "rdzv-guardian\n" and state_of(int(pid)) != "Z":
                        return int(pid)
        return 0


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


@pytest.fixture
def fenced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fenced]:
    fenced = Fenced(monkeypatch)
    try:
        yield fenced
    finally:
        fenced.process.kill()
        with suppress(ProcessLookupError):
            os.kill(fenced.worker, signal.SIGKILL)
        fenced.process.communicate()
        os.close(fenced.heard)
        wait_until(lambda: state_of(fenced.worker) in "XZ", 30, lambda: "the worker is left")


def test_who_has_stood_still_has_its_workers_paused_until_its_session_is_known_to_live(fenced: Fenced) -> None:
    assert round_holds()
    fenced.session("silent")  # an outage: the workers go on, but do not know
    fenced.wait_holds(wanted=False)
    assert not wait_until_round_holds(timeout=0.5)
    assert state_of(fenced.worker) == "S"
    fenced.session("lives")
    assert wait_until_round_holds(timeout=30)
    fenced.session("silent")
    fenced.signal(signal.SIGSTOP)
    fenced.wait_worker("T")  # by the guardian
    assert not round_holds()
    fenced.signal(signal.SIGCONT)
    assert not wait_until_round_holds(timeout=1)
    assert state_of(fenced.worker) == "T"
    fenced.session("lives")
    fenced.wait_worker("S")
    fenced.wait_holds(wanted=True)
    out, errors = fenced.process.communicate(timeout=30)
    assert (out, fenced.process.returncode) == ("left: []\n", 0), errors
    assert "paused until it is known" in errors
    assert "its workers go on" in errors
    assert not round_holds()


def test_who_has_stood_still_without_a_guardian_pauses_its_workers_itself(fenced: Fenced) -> None:
    guardian = wait_until(lambda: fenced.guardian, 30, lambda: "no guardian")
    os.kill(guardian, signal.SIGSTOP)
    fenced.session("silent")
    fenced.wait_holds(wanted=False)
    fenced.signal(signal.SIGSTOP)
    wait_until(lambda: state_of(fenced.process.pid) == "T", 30, lambda: "not stopped")
    with pytest.raises(subprocess.TimeoutExpired):
        fenced.process.wait(1.5)  # more than half of its time to live
    assert state_of(fenced.worker) == "S"
    fenced.signal(signal.SIGCONT)
    fenced.wait_worker("T")
    fenced.session("ended")
    fenced.wait_worker("Z")
    assert not wait_until_round_holds(timeout=60), "at once: it is over for good"
    os.kill(guardian, signal.SIGCONT)
    fenced.process.kill()
    wait_until(lambda: state_of(guardian) in "XZ", 30, lambda: "the guardian is left")


def test_workers_of_a_session_that_has_ended_are_killed(fenced: Fenced) -> None:
    fenced.session("ended")
    fenced.wait_worker("Z")
    assert not round_holds()
    fenced.session("lives")
    fenced.session("again")
    wait_until(lambda: fenced.guardian, 30, lambda: "no guardian")
    assert not round_holds(), "the round of later workers is not that of this one"
    out, errors = fenced.process.communicate(timeout=30)
    assert out.startswith("kills\n")
    assert out.endswith("left: []\n")
    assert errors.count("its workers are killed") == 1


def test_a_guardian_that_was_killed_is_replaced(fenced: Fenced) -> None:
    first = wait_until(lambda: fenced.guardian, 30, lambda: "no guardian")
    os.kill(first, signal.SIGKILL)
    second = wait_until(lambda: fenced.guardian not in (0, first) and fenced.guardian, 30, lambda: "no other guardian")
    fenced.signal(signal.SIGKILL)
    fenced.wait_worker("XZ")
    wait_until(lambda: state_of(second) in "XZ", 30, lambda: "the guardian is left")


def test_outside_of_a_launcher_every_round_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDZV_ROUND_HOLDS", raising=False)
    assert round_holds()
    assert wait_until_round_holds(timeout=0)
    monkeypatch.setenv("RDZV_ROUND_HOLDS", "/proc/1/fd/none,1")  # its agent has gone
    assert not round_holds()
