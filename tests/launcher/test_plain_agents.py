"""Nodes of torch's own agent leave by our backends: as done, failed or lost, and nobody is harmed by who is done."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kits import KITS

DRIVER = KITS / "launcher" / "plain_agents.py"
OTHERS = ("tiered", "static", "c10d")
OURS = [
    "rdzv-plugins.parallel",
    *(pytest.param(f"rdzv-plugins.{name}", marks=pytest.mark.thorough) for name in OTHERS),
]


Jobs = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def driver() -> Iterator[subprocess.Popen[str]]:
    """The process that starts them all."""
    command = [sys.executable, str(DRIVER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.fixture
def jobs(driver: subprocess.Popen[str], tmp_path: Path) -> Jobs:
    """Starts ``count`` jobs of two nodes, whose workers run these commands; returns how they ended."""

    def run(backend: str, count: int, barrier: float | None, *commands: str, **settings: str) -> list[dict[str, Any]]:
        assert driver.stdin
        assert driver.stdout
        print(json.dumps([str(tmp_path), backend, count, barrier, *commands, settings]), file=driver.stdin, flush=True)
        return json.loads(driver.stdout.readline())

    return run


def assert_clean(job: dict[str, Any], *, tracebacks: bool = False) -> None:
    """Both workers have run once, to their end, and nobody has lost anybody."""
    text = "\n".join(job["outputs"])
    assert job["codes"] == [0, 0], text
    assert text.count(" starts\n") == text.count(" ends\n") == 2, text
    assert "lost the " not in text, text
    assert tracebacks or "Traceback" not in text, text


@pytest.mark.parametrize("backend", OURS)  # of torch's own, on a busy machine, one job of 20 has a traceback
def test_a_successful_job_ends_without_a_traceback(jobs: Jobs, backend: str) -> None:
    for job in jobs(backend, 3, None, "sleep 0.1", "sleep 0.1"):
        assert_clean(job)


@pytest.mark.thorough
@pytest.mark.parametrize("backend", OURS)
def test_who_is_done_and_does_not_wait_is_not_lost(jobs: Jobs, backend: str) -> None:
    for commands in (("true", "sleep 2"), ("sleep 2", "true")):
        for job in jobs(backend, 1, 0, *commands, linger="0.5"):
            assert_clean(job, tracebacks=True)


@pytest.mark.parametrize("backend", OURS)
def test_a_failed_node_ends_the_job_of_the_other(jobs: Jobs, backend: str) -> None:
    (job,) = jobs(backend, 1, 0, "sleep 1; exit 3", "sleep 60")
    assert job["codes"] == [1, 1], job["outputs"]
    told = next(text for text in job["outputs"] if "PeerFailed" in text)
    assert " ends\n" not in told, "its worker was stopped, and it does not wait for another node"
