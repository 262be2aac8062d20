"""One launch of ``rdzv bench launch``, from start to end, and what it cost."""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rdzv_launcher.bench.jobs.launchers import JobFailed, Launcher, last_words, meet
from rdzv_launcher.bench.launch.worker import LINE
from rdzv_launcher.bench.method.readings import cpu_seconds, family_cpu_seconds, peak_memory
from rdzv_launcher.bench.method.turns import DidNotFinish
from rdzv_launcher.bench.processes.guard import Guard, end_all, environment
from rdzv_plugins.testing.processes import default_signals

_SAMPLE_EVERY_S = 0.002
_STOP_S = 10.0


@dataclass
class LaunchSample:
    """The figures of one launch, in seconds and MiB; see the caption in ``launch.bench``."""

    first_line: float = 0.0
    all_lines: float = 0.0
    """The time from the start of the agents to the line of the very last worker."""
    agent_cpu: float = 0.0
    job_cpu: float = 0.0
    """CPU time of all the job's processes, with workers and what preloads for them, until the last worker's line."""
    agent_peak: float = 0.0
    ending: float = 0.0
    total_cpu: float = 0.0


@dataclass(frozen=True)
class Launch:
    """What is launched, the same for all targets."""

    nodes: int
    workers: int
    worker: Path
    guard: Guard
    before: Sequence[str]
    """What goes in front of each agent's command."""
    limit_s: float

    def run(self, launcher: Launcher, *, collective: bool) -> LaunchSample:
        """Launch once. Raises ``JobFailed`` if it fails, or takes longer than the limit."""
        sample = LaunchSample()
        service_cpu = launcher.service_cpu()
        mark, directory = self.guard.new_job()
        meeting = meet(launcher, directory)
        variables = environment(mark) | {"GLOO_SOCKET_IFNAME": "lo"} | {**launcher.environment}
        script = [self.worker, *(["collective"] if collective else [])]
        commands = [
            [*self.before, *meeting.command(node, str(self.nodes), self.workers, script)] for node in range(self.nodes)
        ]
        with tempfile.TemporaryFile() as stderr:
            agents: list[subprocess.Popen[bytes]] = []
            start = time.perf_counter()
            try:
                for command in commands:
                    agents.append(
                        subprocess.Popen(
                            command,
                            stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE,
                            stderr=stderr,
                            env=variables,
                            cwd=self.guard.directory,
                            preexec_fn=default_signals,
                        )
                    )
                self._wait_workers(agents, start, sample, lambda: launcher.service_cpu() - service_cpu)
                self._wait_end(agents, sample)
                sample.total_cpu += launcher.service_cpu() - service_cpu
                if any(agent.returncode for agent in agents):
                    raise DidNotFinish(f"exit codes {[agent.returncode for agent in agents]}")
            except DidNotFinish as error:
                stderr.seek(0)
                raise JobFailed(str(error), last_words(stderr.read().decode(errors="replace"))) from None
            finally:
                _stop(agents)
                end_all(mark)
        return sample

    def _wait_workers(
        self,
        agents: list[subprocess.Popen[bytes]],
        start: float,
        sample: LaunchSample,
        service_cpu: Callable[[], float],
    ) -> None:
        """Wait until every worker has spoken, and read the figures when the last node's first worker has.

        ``service_cpu`` returns the seconds used by the service that they dial, since the start.
        """
        said = dict.fromkeys(range(len(agents)), b"")
        with selectors.DefaultSelector() as selector:
            for node, agent in enumerate(agents):
                selector.register(_open(agent.stdout), selectors.EVENT_READ, node)
            while min(text.count(LINE) for text in said.values()) < self.workers:
                ready = selector.select(max(0.0, start + self.limit_s - time.perf_counter()))
                now = time.perf_counter()
                if not ready:
                    raise DidNotFinish(f"the workers did not start within {self.limit_s:g} s")
                for key, _ in ready:
                    text = os.read(key.fd, 4096)
                    if not text:
                        raise DidNotFinish("an agent ended before its workers had started")
                    said[key.data] += text
                if not sample.first_line and all(LINE in text for text in said.values()):
                    sample.first_line = now - start
                    sample.agent_cpu = sum(cpu_seconds(agent.pid) for agent in agents) + service_cpu()
                sample.all_lines = now - start
        sample.job_cpu = sum(family_cpu_seconds(agent.pid) for agent in agents) + service_cpu()

    def _wait_end(self, agents: list[subprocess.Popen[bytes]], sample: LaunchSample) -> None:
        """Let the workers end, and watch the agents' memory until they have ended, too."""
        peaks = dict.fromkeys((agent.pid for agent in agents), 0.0)
        start = time.perf_counter()
        alive = list(agents)
        while alive:
            for agent in list(alive):
                peaks[agent.pid] = peak_memory(agent.pid) or peaks[agent.pid]
                if agent.stdin and not agent.stdin.closed:
                    agent.stdin.close()
                pid, status, usage = os.wait4(agent.pid, os.WNOHANG)
                if pid:
                    agent.returncode = os.waitstatus_to_exitcode(status)
                    sample.total_cpu += usage.ru_utime + usage.ru_stime
                    alive.remove(agent)
            if alive and time.perf_counter() > start + self.limit_s:
                raise DidNotFinish(f"the agents did not end within {self.limit_s:g} s after their workers")
            time.sleep(_SAMPLE_EVERY_S if alive else 0)
        sample.ending = time.perf_counter() - start
        sample.agent_peak = max(peaks.values())


def _stop(agents: list[subprocess.Popen[bytes]]) -> None:
    """End what is left after an error, and close the pipes: workers end with their standard input."""
    for agent in agents:
        _open(agent.stdin).close()
        agent.terminate()  # does nothing to one that has been waited for
    for agent in agents:
        try:
            agent.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
        _open(agent.stdout).close()


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "started with a pipe"
    return stream
