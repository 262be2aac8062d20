"""Commands of the guides under docs/guides, as a reader would paste them into a shell of this machine."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from kits import ROOT
from kits.etcd.etcd_processes import environment
from kits.launcher.harness import BIN, AgentProcess, Cluster

GUIDES = ROOT / "docs/guides"


def block(page: str, containing: str) -> str:
    """The only shell block of a page with that text."""
    blocks = re.findall(r"```sh\n(.*?)```", (GUIDES / page).read_text(), re.DOTALL)
    (found,) = (block for block in blocks if containing in block)
    return str(found)


def here(text: str, replace: Mapping[str, str]) -> str:
    """The text with what is elsewhere replaced; each of these has to be in it."""
    for there, value in replace.items():
        assert there in text, f"{there!r} is not in:\n{text}"
        text = text.replace(there, value)
    return text


def run(script: str, folder: Path, **env: str) -> str:
    """What bash prints."""
    own = environment() | {"PATH": f"{BIN}:{os.environ['PATH']}"} | env
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, capture_output=True, text=True, timeout=150, env=own
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def start(jobs: Cluster, script: str, **env: str) -> AgentProcess:
    """A script whose last command goes on."""
    own = {"PATH": f"{BIN}:{os.environ['PATH']}", "ETCDCTL_API": "3"} | env
    return jobs.start(["/bin/bash", "-euc", script], before=("setpriv", "--pdeathsig", "KILL"), **own)
