"""How many of so many jobs go on after the serving process of three endpoints was killed by SIGKILL.

Three agents on this machine serve one endpoint each; their workers have no torch. The agent that serves is killed as
soon as its worker runs. A job has gone on when the workers of the two others run in the next round, which has used up
no restart, and both agents end with 0. Run as a program:
``PYTHONPATH=tests python -m kits.launcher.serving_killed --jobs=100``; the exit code is 1 where one has not.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from kits.eventually import eventually
from kits.launcher.harness import Agent, Cluster, new_cluster
from rdzv_plugins.testing.harness import free_port

NODES = 3
_SOON_S = 150.0


def goes_on(directory: Path, backend: str) -> float:
    """One job; returns the seconds from the kill to the new workers. Raises ``AssertionError`` where it does not."""
    with contextmanager(new_cluster)(directory) as cluster:
        ports = [free_port() for _ in range(NODES)]
        cluster.port = ports[0]
        agents = [_agent(cluster, ports, backend) for _ in ports]
        _all_work(agents, 1)
        (serving,) = (agent for agent in agents if cluster.listens(agent))
        others = [agent for agent in agents if agent is not serving]
        began = time.monotonic()
        os.kill(serving.pid, signal.SIGKILL)
        _all_work(others, 2)
        seconds = time.monotonic() - began
        for agent in others:
            last = agent.reports()[-1]
            told = (last["WORLD_SIZE"], last["TORCHELASTIC_RESTART_COUNT"])
            assert told == (str(NODES - 1), "0"), f"size and restarts: {told}"
        (directory / "stop").touch()
        codes = [agent.wait() for agent in others]
        assert codes == [0] * len(others), f"exit codes {codes}: {[agent.text for agent in others]}"
    return seconds


def _agent(cluster: Cluster, ports: list[int], backend: str) -> Agent:
    endpoint = ",".join(f"127.0.0.1:{port}" for port in ports)
    command = ["rdzv-run", f"--nnodes={NODES - 1}:{NODES}", "--nproc-per-node=1", f"--rdzv-backend={backend}"]
    command += [f"--rdzv-endpoint={endpoint}", "--rdzv-id=none", "--rdzv-conf=ttl=60,last_call_timeout=60"]
    stop = cluster.directory / "stop"
    return cluster.start([*command, "--max-restarts=0", cluster.script("says.py"), stop, 0])


def _all_work(agents: list[Agent], reports: int) -> None:
    eventually(
        lambda: all(len(agent.reports()) >= reports for agent in agents),
        lambda: f"not all work: {[agent.text for agent in agents]}",
    )


def main() -> int:
    """Start one job after the other, and say of each how long it took; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--backend", default="parallel", choices=("parallel", "tiered"))
    asked = parser.parse_args()
    seconds: list[float] = []
    for number in range(1, asked.jobs + 1):
        with tempfile.TemporaryDirectory() as directory:
            try:
                seconds.append(goes_on(Path(directory), asked.backend))
            except AssertionError as error:
                print(f"job {number} has not gone on: {error}", flush=True)
            else:
                print(f"job {number}: {seconds[-1]:.2f} s", flush=True)
    lasted = f"; {min(seconds):.2f} to {max(seconds):.2f} s, median {median(seconds):.2f} s" if seconds else ""
    print(f"{len(seconds)} of {asked.jobs} jobs went on{lasted}")
    return int(len(seconds) < asked.jobs)


if __name__ == "__main__":
    sys.exit(main())
