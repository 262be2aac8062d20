"""Jobs of one test on the real Slurm of ``slurm_kit``: batch scripts and commands of a user on the login node."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kits.eventually import eventually
from kits.launcher.harness import AgentProcess, Cluster
from kits.slurm.slurm_kit import LOGIN, Slurm

_OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


class BatchJob:
    """A job that sbatch has taken, or one of an array."""

    def __init__(self, slurm: Slurm, number: str, output: Path) -> None:
        self.slurm, self.number, self.output = slurm, number, output

    @property
    def text(self) -> str:
        """What it has printed, the tries before a requeue included."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def reports(self) -> list[dict[str, Any]]:
        """What workers have printed as one line of JSON each."""
        return [json.loads(line) for line in re.findall(r"^(?:\d+: )?(\{.*\})$", self.text, re.MULTILINE)]

    def wait_for(self, pattern: str, count: int = 1) -> None:
        """Until so many places of its output match."""

        def found() -> bool:
            return len(re.findall(pattern, self.text, re.MULTILINE)) >= count

        eventually(found, lambda: f"no {pattern!r} in:\n{self.text}\n{self.slurm.log()}")

    def wait_reports(self, count: int) -> list[dict[str, Any]]:
        """Until so many workers have said what they were given."""
        self.wait_for(r"^(?:\d+: )?\{.*\}$", count)
        return self.reports()

    def wait(self) -> tuple[str, int]:
        """The state in which it has ended, and the exit code of its script."""

        def ended() -> dict[str, str] | None:
            found = self.slurm.job(self.number)
            return found if found["JobState"] in _OVER else None

        found = eventually(ended, lambda: f"{self.slurm.job(self.number)}\n{self.text}")
        return found["JobState"], int(found["ExitCode"].partition(":")[0])


class User:
    """Who starts jobs. All that is started is found by its mark, on whichever node."""

    def __init__(self, slurm: Slurm, cluster: Cluster) -> None:
        self.slurm, self.cluster = slurm, cluster
        self.stop = cluster.directory / "stop"
        """The file at which workers end that run until then."""

    def script(self, name: str) -> Path:
        return self.cluster.script(name)

    def srun(self, *command: object, **env: str) -> AgentProcess:
        """``srun`` with these options and that command, in the foreground."""
        return self.start(LOGIN, "srun", *command, **env)

    def start(self, host: str, program: str, *arguments: object, **env: str) -> AgentProcess:
        """A program on a host of the cluster, in the foreground."""
        before = self.slurm.enter(host, self.cluster.directory)
        return self.cluster.start([str(shutil.which(program)), *arguments], before=before, **self.slurm.env | env)

    def sbatch(self, script: Path | str, *arguments: object, options: Sequence[str] = (), **env: str) -> BatchJob:
        """A script, or the text of one, and its arguments."""
        directory = self.cluster.directory
        if isinstance(script, str):
            text, script = script, directory / "job.sh"
            script.write_text(f"#!/bin/bash\n{text}\n")
        output = (
            f"--output={directory}/%A-%a.out"
            if any("--array" in each for each in options)
            else f"--output={directory}/%j.out"
        )
        whole = ["sbatch", "--parsable", output, "--open-mode=append", *options, script, *arguments]
        number = self.slurm.run(*whole, directory=directory, **self.cluster.env | self.slurm.env | env).strip()
        return BatchJob(self.slurm, number, directory / f"{number}.out")

    def element(self, array: BatchJob, index: int) -> BatchJob:
        """One job of an array."""
        return BatchJob(self.slurm, f"{array.number}_{index}", array.output.with_name(f"{array.number}-{index}.out"))

    def end_workers(self) -> None:
        self.stop.touch()
