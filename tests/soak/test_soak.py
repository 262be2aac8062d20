"""A soak of a few faults, which the job has to bear."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kits.hosts.hosts import why_not

SOAK = Path(__file__).parent
pytestmark = [pytest.mark.usefixtures("hosts_can_be_made"), pytest.mark.thorough]


def soak(directory: Path, *flags: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the line, and what was said."""
    command = [sys.executable, str(SOAK), f"--out={directory}", "--nodes=2", "--min-nodes=1", "--slack=5", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("secrets", [(), ("--token", "--tls")])
def test_job_bears_a_few_faults(tmp_path: Path, secrets: tuple[str, ...]) -> None:
    faults = "--faults=kill_worker,term_agent,stop_worker"
    code, line, said = soak(tmp_path / "soak", "--seed=10", "--bursts=2", faults, *secrets)
    assert (line["token"], line["tls"]) == (bool(secrets), bool(secrets))
    assert (code, line["violations"]) == (0, []), said
    assert line["bursts"] == 2
    assert line["faults"] == {"kill_worker": 1, "term_agent": 1, "all": 2}
    assert line["recovery_s"].keys() == {"kill_worker", "term_agent", "term_agent_others"}
    assert line["jobs"] == {"done": 1}
    assert line["rounds"] >= 4, "one more after the worker's end, the node's leave and its return"
    assert line["steps"] > 0
    folder = Path(line["folder"])
    assert {"agents", "records", "events.jsonl", "soak.log"} <= {path.name for path in folder.iterdir()}


@pytest.fixture
def hosts_can_be_made(tmp_path: Path) -> None:
    reason = why_not(tmp_path)
    if reason and os.environ.get("CI") == "true":
        pytest.fail(f"CI has to run the soak: {reason}")
    if reason:
        pytest.skip(reason)
