"""Child processes of a benchmark: what they say, how they end, and what is told of one that has ended; its guard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kits.eventually import eventually

from rdzv_launcher.bench.children import Child, Guard, end_all, environment, serve
from rdzv_launcher.bench.points import DidNotFinish
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.testing.processes import marked

pytestmark = pytest.mark.thorough

LIMIT_S = 60.0


def twice(connection, *_) -> None:
    """Answers with what it is asked, twice; what is too much does not finish."""

    def answer(text: str) -> str:
        if text == "too much":
            raise DidNotFinish(text)
        return text * 2

    serve(connection, "ready", answer)


def breaks(connection) -> None:
    print(*range(20), sep="\n", file=sys.stderr)
    raise RdzvError("no luck")


def tidies(connection, file: Path) -> None:
    connection.send("ready")
    try:
        connection.recv()
    finally:
        file.unlink()


def stays(connection) -> None:
    connection.send("ready")
    time.sleep(600)


def test_child_answers_also_that_something_did_not_finish_and_may_be_silent() -> None:
    with Child("the child", twice) as child:
        assert child.answer(LIMIT_S) == "ready"
        assert [child.ask({"text": "ab"}), child.ask({"text": "c"})] == ["abab", "cc"]
        with pytest.raises(DidNotFinish, match="too much"):
            child.ask({"text": "too much"})
        with pytest.raises(RdzvError, match=r"^the child did not answer within 0\.1 s$"):
            child.answer(0.1)
        assert child.cpu_seconds() > 0


def test_child_that_breaks_or_was_killed_is_an_error_that_says_why() -> None:
    with Child("the child", breaks) as broken, pytest.raises(RdzvError) as raised:
        broken.answer(LIMIT_S)
    first, *words = str(raised.value).splitlines()
    assert first == "the child ended with exit code 1"
    assert words == [f"  | {word}" for word in [*range(9, 20), "no luck"]]
    with Child("the child", twice) as child:
        child.answer(LIMIT_S)
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(RdzvError, match=r"^the child was ended by SIGKILL$"):
            child.ask({"text": "ab"})


def test_child_ends_with_its_connection_has_time_to_tidy_up_and_is_killed_if_it_stays(tmp_path: Path) -> None:
    file = tmp_path / "left"
    file.touch()
    with Child("the child", tidies, file, end_limit_s=LIMIT_S) as tidy:
        tidy.answer(LIMIT_S)
        assert file.exists()
    assert not file.exists()
    with Child("the child", stays, end_limit_s=0.1) as stubborn:
        stubborn.answer(LIMIT_S)
    assert not Path(f"/proc/{stubborn.pid}").exists()


def test_guard_ends_frozen_processes_of_its_mark_and_no_others() -> None:
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleeps) as stranger:
        try:
            with Guard() as guard:
                mark, directory = guard.new_job()
                one, other = (subprocess.Popen(sleeps, env=environment(f"{mark}{part}")) for part in ("-0", "-1"))
                eventually(lambda: len(marked(mark, parts=True)) == 2, lambda: f"{marked(mark, parts=True)}")
                end_all(f"{mark}-0")
                assert one.wait(LIMIT_S) == -signal.SIGKILL
                assert [*marked(mark, parts=True)] == [other.pid]
                other.send_signal(signal.SIGSTOP)
            assert other.wait(LIMIT_S) == -signal.SIGKILL
            assert not directory.exists()
            assert stranger.poll() is None
        finally:
            stranger.kill()
