"""What fence and keeper do when an agent stands still, or its session is silent or ends; and what workers hear."""

from __future__ import annotations

import json
import os
import shutil
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
    """fenced.py: an agent with one worker, and a child of that in a session of its own."""

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
        self.worker, self.keeper, self.other = (first.pop(name) for name in ("worker", "keeper", "other"))
        self.directory = Path(first.pop("directory"))
        noted = self.directory / "child"
        self.child = int(wait_until(lambda: noted.exists() and noted.read_text().strip(), 30, lambda: "no child"))
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
        """It is in one of these states, and so is what it has started."""
        wait_until(lambda: self.states <= {*states}, 30, lambda: f"the workers are {self.states}")

    def wait_holds(self, *, wanted: bool) -> None:
        wait_until(lambda: round_holds() is wanted, 30, lambda: f"round_holds() is not {wanted}")

    @property
    def states(self) -> set[str]:
        return {state_of(self.worker), state_of(self.child)}


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
        for pid in (fenced.worker, fenced.child, fenced.other):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        fenced.process.communicate()
        os.close(fenced.heard)
        fenced.wait_worker("XZ")
        shutil.rmtree(fenced.directory, ignore_errors=True)


def test_who_has_stood_still_has_its_workers_paused_until_its_session_is_known_to_live(fenced: Fenced) -> None:
    assert wait_until_round_holds(timeout=30)
    fenced.session("silent")  # an outage: the workers go on, but do not know
    fenced.wait_holds(wanted=False)
    assert not wait_until_round_holds(timeout=0.5)
    assert fenced.states == {"S"}
    fenced.session("lives")
    assert wait_until_round_holds(timeout=30)
    fenced.session("silent")
    fenced.signal(signal.SIGSTOP)
    fenced.wait_worker("T")  # by the keeper
    assert not round_holds()
    fenced.signal(signal.SIGCONT)
    assert not wait_until_round_holds(timeout=1)
    assert fenced.states == {"T"}
    fenced.session("lives")
    fenced.wait_worker("S")
    fenced.wait_holds(wanted=True)
    out, errors = fenced.process.communicate(timeout=30)
    assert (out, fenced.process.returncode) == ("left: []\n", 0), errors
    assert "paused until it is known" in errors
    assert "its workers go on" in errors
    assert state_of(fenced.other) in "XZ", "the agent has ended what it has started itself"
    assert not round_holds()


def test_who_has_stood_still_as_its_keeper_has_pauses_its_workers_itself(fenced: Fenced) -> None:
    """And what they have started is paused when the keeper goes on."""
    os.kill(fenced.keeper, signal.SIGSTOP)
    fenced.session("silent")
    fenced.wait_holds(wanted=False)
    fenced.signal(signal.SIGSTOP)
    wait_until(lambda: state_of(fenced.process.pid) == "T", 30, lambda: "not stopped")
    with pytest.raises(subprocess.TimeoutExpired):
        fenced.process.wait(7)  # more than half of its time to live
    assert fenced.states == {"S"}
    fenced.signal(signal.SIGCONT)
    wait_until(lambda: state_of(fenced.worker) == "T", 30, lambda: "the worker runs")
    os.kill(fenced.keeper, signal.SIGCONT)
    fenced.wait_worker("T")
    fenced.session("ended")
    fenced.wait_worker("XZ")
    assert not wait_until_round_holds(timeout=60), "at once: it is over for good"
    fenced.process.kill()
    wait_until(lambda: state_of(fenced.keeper) in "XZ", 30, lambda: "the keeper is left")
    assert not fenced.directory.exists(), "a keeper removes what is its agent's"
    assert state_of(fenced.other) in "XZ", "and ends what that has started itself"


def test_workers_of_a_session_that_has_ended_are_killed(fenced: Fenced) -> None:
    fenced.session("ended")
    fenced.wait_worker("XZ")
    assert not round_holds()
    fenced.session("lives")
    fenced.session("again")
    assert not round_holds(), "the round of later workers is not that of this one"
    out, errors = fenced.process.communicate(timeout=30)
    assert out.startswith("kills\n")
    assert out.endswith("left: []\n")
    assert errors.count("its workers are killed") == 1


def test_outside_of_a_launcher_every_round_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDZV_ROUND_HOLDS", raising=False)
    assert round_holds()
    assert wait_until_round_holds(timeout=0)
    monkeypatch.setenv("RDZV_ROUND_HOLDS", "/proc/1/fd/none,1")  # its agent has gone
    assert not round_holds()
