"""Child processes of a benchmark: what they say, how they end, and what is told of one that has ended."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from rdzv_launcher.bench.processes.child import Child, NoAnswer
from rdzv_plugins.errors import RdzvError

LIMIT_S = 60.0
_ECHO = "print('ready', flush=True)\nfor line in sys.stdin: print(line.strip() * 2, flush=True)"
_SILENT = "sys.stdin.read()"


def child(code: str, **more: float) -> Child:
    return Child("the child", [sys.executable, "-c", f"import os, sys, time\n{code}"], **more)


def test_child_says_that_it_is_ready_and_answers() -> None:
    with child(_SILENT) as silent, pytest.raises(NoAnswer):
        silent.read(0.1)
    with child(_ECHO) as echo:
        assert echo.wait_ready(LIMIT_S) == "ready"
        assert [echo.ask("ab", LIMIT_S), echo.ask("c", LIMIT_S)] == ["abab", "cc"]
        assert echo.own_cpu_seconds() > 0


def test_child_that_does_not_start_says_why() -> None:
    code = "print(*range(20), 'no luck', sep='\\n', file=sys.stderr); sys.exit(3)"
    with child(code) as broken, pytest.raises(RdzvError) as raised:
        broken.wait_ready(LIMIT_S)
    first, *words = str(raised.value).splitlines()
    assert first == "the child did not start"
    assert words == [f"  | {word}" for word in [*range(9, 20), "no luck"]]


def test_child_that_was_killed_is_no_answer_but_an_error() -> None:
    with child(_ECHO) as echo:
        echo.wait_ready(LIMIT_S)
        os.kill(echo.pid, signal.SIGKILL)
        with pytest.raises(RdzvError, match=r"^the child was ended by SIGKILL$"):
            echo.ask("ab", LIMIT_S)


def test_child_that_closes_its_output_and_goes_on_is_ended() -> None:
    ended = pytest.raises(RdzvError, match=r"^the child was ended by SIGKILL$")
    with child("os.close(1); time.sleep(600)", end_limit_s=0.1) as mute, ended:
        mute.read(LIMIT_S)


def test_child_ends_with_its_input_and_has_time_to_tidy_up(tmp_path: Path) -> None:
    file = tmp_path / "left"
    file.touch()
    with child(f"print('ready', flush=True); {_SILENT}; os.remove({str(file)!r})", end_limit_s=LIMIT_S) as tidy:
        tidy.wait_ready(LIMIT_S)
        assert file.exists()
    assert not file.exists()


def test_child_that_does_not_end_is_killed() -> None:
    with child("print('ready', flush=True); time.sleep(600)", end_limit_s=0.1) as stubborn:
        stubborn.wait_ready(LIMIT_S)
        pid = stubborn.pid
    assert not Path(f"/proc/{pid}").exists()
