"""The demo behind ``make demo``: two nodes train here, a worker is killed, then a whole node, and the training goes on.

Real parts throughout: rdzv-run agents, four workers of train_digits.py, SIGKILLs. It checks what it
shows, and exits with 1 if anything came otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

BIN = Path(sys.executable).parent
SCRIPT = Path(__file__).with_name("train_digits.py")
NODES, WORKERS_PER_NODE, EPOCHS, KILL_AFTER_EPOCH, EPOCHS_BETWEEN = 2, 2, 14, 3, 2
MIN_ACCURACY = 95.0
LIMIT_S = 240.0
"""Something hangs after this long. A quiet machine with two cores needs about 45 s."""
STOP_S = 15.0
COLOURS = sys.stdout.isatty() and "NO_COLOR" not in os.environ


class Unexpected(Exception):
    """What the demo expected and did not see."""


def say(text: str = "") -> None:
    """One line of the demo's own."""
    print(paint(f"demo: {text}", 1) if text else "", flush=True)


def paint(text: str, code: int) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOURS else text


def short(path: Path) -> str:
    """The path as one would type it here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


class Agent:
    """One rdzv-run, standing for one node. Its lines go to ``lines`` as (node, line); None when it has closed."""

    def __init__(self, node: int, command: list[str], lines: queue.Queue[tuple[int, str | None]]) -> None:
        self.node = node
        # a session of its own: Ctrl-C reaches the demo only, which then ends the agents in order
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: queue.Queue[tuple[int, str | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            lines.put((self.node, line.rstrip("\n")))
        lines.put((self.node, None))

    def workers(self) -> dict[int, int]:
        """Rank to pid of the workers that it runs now: the children of its supervisor, which is its child."""
        found = {}
        for supervisor in children_of(self.process.pid):
            for pid in children_of(supervisor):
                with contextlib.suppress(OSError):  # it may end while we look
                    if SCRIPT.name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        rank = re.search(rb"(?:^|\0)RANK=(\d+)\0", Path(f"/proc/{pid}/environ").read_bytes())
                        found[int(rank[1]) if rank else -1] = pid
        return found


def children_of(parent: int) -> list[int]:
    """The pids of a process's children."""
    found: list[int] = []
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it may end while we look
            found += map(int, children.read_text().split())
    return found


class Demo:
    """One run of the story, and what was seen of it."""

    def __init__(self, backend: str, checkpoint: Path) -> None:
        self.backend = backend
        self.checkpoint = checkpoint
        self.start = time.monotonic()
        self.agents: list[Agent] = []
        self.lines: queue.Queue[tuple[int, str | None]] = queue.Queue()
        self.closed = 0
        self.epoch = 0
        self.rounds = 0
        self.resumed: dict[int, int] = {}
        self.accuracy = 0.0
        self.launch: list[str] = []
        self.training: list[str] = []

    def run(self) -> None:
        """The whole story. Raises ``Unexpected``."""
        say(f"Two nodes of two workers, all on this machine, train a small network ({EPOCHS} epochs, real data).")
        say("In the middle a worker is killed; all four start again and go on from the last checkpoint.")
        if self.elastic:
            say("Later all of node 1 is killed: node 0 goes on alone, until node 1 comes back.")
        say("It takes about a minute, on a machine with nothing else to do.")
        say()
        self.start_agents()
        self.wait_until(lambda: self.epoch >= KILL_AFTER_EPOCH, f"the end of epoch {KILL_AFTER_EPOCH}")
        rows = [self.lose_worker()]
        if self.elastic:
            self.wait_epochs(EPOCHS_BETWEEN)
            rows.append(self.lose_node())
            self.wait_epochs(EPOCHS_BETWEEN)
            rows.append(self.return_node())
        self.wait_until(lambda: self.closed == len(self.agents), "the end")
        self.check()
        say()
        say("Done. All of it came as expected:")
        self.print_table(
            *rows,
            ("rounds", f"{self.rounds}: the first, and one after each change"),
            ("accuracy", f"{self.accuracy:.1f} % of the test images"),
            ("total", f"{time.monotonic() - self.start:.0f} s"),
        )

    @property
    def elastic(self) -> bool:
        """Nodes may come and go."""
        return self.backend == "parallel"

    def lose_worker(self) -> tuple[str, str]:
        """A worker is killed: all start again. Returns a row of the summary."""
        rank, pid = self.kill_worker()
        pause, epoch = self.wait_resumed(NODES * WORKERS_PER_NODE)
        say(f"3. A fresh round: all {NODES * WORKERS_PER_NODE} workers run again and have resumed from epoch {epoch}.")
        return "worker killed", f"rank {rank} (pid {pid}); all resumed from epoch {epoch}, {pause:.1f} s later"

    def lose_node(self) -> tuple[str, str]:
        """A node is killed, its agent and its workers: the other goes on. Returns a row of the summary."""
        lost = self.agents[1]
        pids = [*lost.workers().values(), lost.process.pid]
        say(f"4. Now all of node 1 is killed: its agent and its workers (pids {', '.join(map(str, pids))}).")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        pause, epoch = self.wait_resumed(WORKERS_PER_NODE)
        say(f"5. Node 0 goes on alone, from epoch {epoch}. That has used up none of its --max-restarts.")
        return "node killed", f"node 0 resumed alone from epoch {epoch}, {pause:.1f} s later"

    def return_node(self) -> tuple[str, str]:
        """The node comes back, as a scheduler would start it again. Returns a row of the summary."""
        say("6. Node 1 comes back: the same command again. Both nodes start a round together.")
        self.start_agent(1)
        pause, epoch = self.wait_resumed(NODES * WORKERS_PER_NODE)
        say(f"7. All {NODES * WORKERS_PER_NODE} workers go on from epoch {epoch}.")
        return "node back", f"all resumed from epoch {epoch}, {pause:.1f} s later"

    def wait_resumed(self, workers: int) -> tuple[float, int]:
        """Until so many workers go on from one checkpoint; how long that took, and after which epoch it was saved."""
        start, saved = time.monotonic(), self.epoch
        self.resumed.clear()
        self.wait_until(lambda: len(self.resumed) == workers, f"that {workers} workers resume from the checkpoint")
        if min(self.resumed.values()) < saved or len(set(self.resumed.values())) > 1:
            raise Unexpected(f"the workers did not all resume from the last checkpoint: {self.resumed}")
        return time.monotonic() - start, min(self.resumed.values())

    def wait_epochs(self, count: int) -> None:
        wanted = self.epoch + count
        self.wait_until(lambda: self.epoch >= wanted, f"epoch {wanted}")

    def start_agents(self) -> None:
        """Start one rdzv-run for each node."""
        with socket.socket() as probe:  # a port that is free now
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        nodes = f"1:{NODES}" if self.elastic else f"{NODES}"
        launch = [f"--nnodes={nodes}", f"--nproc-per-node={WORKERS_PER_NODE}", "--max-restarts=2"]
        launch += [f"--rdzv-backend={self.backend}", f"--rdzv-endpoint=127.0.0.1:{port}"]
        training = [short(SCRIPT), "--cpu", f"--epochs={EPOCHS}", "--epoch-seconds=0.8"]
        training += [f"--checkpoint={self.checkpoint}"]
        self.launch, self.training = launch, training
        ranks = self.backend != "c10d"
        say("1. Starting one rdzv-run for each node. Both get the same endpoint, where they meet:")
        print(f"      {short(BIN / 'rdzv-run')} {' '.join(launch[:3])} \\")
        print(f"          {' '.join(launch[3:])}{' --node-rank=...' if ranks else ''} \\")
        print(f"          {' '.join(training)}", flush=True)
        for node in range(NODES):
            self.start_agent(node)
        if not ranks:
            say(f"   {self.backend} gives the node ranks itself: the agent shown as [node 1] may become node 0.")
        say("   The workers import torch now: the first epoch comes in some seconds.")

    def start_agent(self, node: int) -> None:
        """Start the rdzv-run of one node."""
        own = [f"--node-rank={node}"] if self.backend != "c10d" else []  # c10d gives the ranks itself
        if self.elastic:  # both are on one machine here: on several, the one with the endpoint's address serves it
            own.append(f"--rdzv-conf=is_host={'true' if node == 0 else 'false'}")
        command = [str(BIN / "rdzv-run"), *self.launch, *own, *self.training]
        self.agents.append(Agent(node, command, self.lines))

    def kill_worker(self) -> tuple[int, int]:
        """Kill one worker of the second agent; returns its rank and pid."""
        say(f"2. Epoch {self.epoch} is done and saved. Now a worker of node 1 is killed with SIGKILL.")
        say("   Tracebacks of its peers may follow: they lose their connection to it, as they must.")
        workers = self.agents[1].workers()
        if not workers:
            raise Unexpected("the agent of node 1 has no worker that could be killed")
        rank, pid = max(workers.items())
        os.kill(pid, signal.SIGKILL)
        say(f"   Killed: rank {rank}, pid {pid}.")
        return rank, pid

    def wait_until(self, seen: Callable[[], bool], what: str) -> None:
        """Show the agents' lines until ``seen()``. Raises ``Unexpected``, naming ``what`` was waited for."""
        while not seen():
            if self.closed == len(self.agents):
                codes = [agent.process.wait() for agent in self.agents]
                raise Unexpected(f"all agents ended (exit codes {codes}) before {what}")
            try:
                node, line = self.lines.get(timeout=max(0.0, self.start + LIMIT_S - time.monotonic()))
            except queue.Empty:
                raise Unexpected(f"{what} did not come within {LIMIT_S:g} s") from None
            if line is None:
                self.closed += 1
                continue
            print(f"{paint(f'[node {node}]', 36 if node else 32)} {line}", flush=True)
            self.note(line)

    def note(self, line: str) -> None:
        """Remember what a line of train_digits.py says."""
        if found := re.fullmatch(r"epoch (\d+)/\d+: .*", line):
            self.epoch = int(found[1])
        elif found := re.fullmatch(r"rank (\d+): resumed from epoch (\d+)", line):
            self.resumed[int(found[1])] = int(found[2])
            self.rounds += found[1] == "0"
        elif line.startswith("training from the start"):
            self.rounds += 1
        elif found := re.fullmatch(r"test accuracy: ([\d.]+) %", line):
            self.accuracy = float(found[1])

    def check(self) -> None:
        """Raise ``Unexpected`` unless the run ended as it should."""
        codes = [agent.process.wait() for agent in self.agents]
        expected = [0, -signal.SIGKILL, 0] if self.elastic else [0, 0]
        if codes != expected:
            raise Unexpected(f"the agents' exit codes are {codes}, not {expected}")
        if self.epoch != EPOCHS:
            raise Unexpected(f"the training ended after epoch {self.epoch} of {EPOCHS}")
        if self.accuracy < MIN_ACCURACY:
            raise Unexpected(f"the accuracy is {self.accuracy} %, less than {MIN_ACCURACY:g} %")

    def print_table(self, *rows: tuple[str, str]) -> None:
        width = max(len(left) for left, _ in rows)
        for left, right in rows:
            print(f"      {left:{width}}  {right}", flush=True)

    def stop(self) -> None:
        """End every process that is left, however it came to that."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.process.terminate()
        deadline = time.monotonic() + STOP_S
        for agent in self.agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.process.wait(max(0.1, deadline - time.monotonic()))
        for pid in self.left_over():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left_over(self) -> Iterator[int]:
        """Agents and workers of this demo: the path of the checkpoint is on their command lines only."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if os.fsencode(self.checkpoint) in (entry / "cmdline").read_bytes():
                        yield int(entry.name)


def missing() -> str:
    """What this demo lacks here and how to get it, in one line; empty if nothing."""
    if not (BIN / "rdzv-run").exists():
        return f"there is no rdzv-run beside {sys.executable}. Run: make demo"
    if importlib.util.find_spec("sklearn") is None:
        return (
            f"the data come with scikit-learn, which is not installed. Run: {short(BIN / 'pip')} install scikit-learn"
        )
    if not Path("/proc/self/task").exists():
        return "it finds the worker to kill through /proc, which only Linux has"
    return ""


def try_next(backend: str) -> None:
    """What a newcomer may type now."""
    other = "c10d" if backend == "parallel" else "parallel"
    say()
    say("What to try next:")
    for command, why in (
        (f"{short(BIN / 'rdzv')} backends", "which rendezvous backends there are"),
        (f"{short(BIN / 'rdzv-run')} --nproc-per-node=2 {short(SCRIPT)}", "the same training on one node"),
        (f"{short(BIN / 'python')} {short(Path(__file__))} --backend={other}", "this demo with another backend"),
    ):
        print(f"      {command:70}  {why}")
    print("      README.md goes on from here: your own script, several machines, plug-ins")


def interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Train on two nodes, kill a worker and a node, see the training resume."
    )
    parser.add_argument(
        "--backend", choices=["parallel", "static", "c10d"], default="parallel", help="default: parallel"
    )
    args = parser.parse_args()
    lack = missing()
    if lack:
        print(f"demo: {lack}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, interrupt)
    with tempfile.TemporaryDirectory(prefix="rdzv-demo-") as directory:
        demo = Demo(args.backend, Path(directory) / "digits.pt")
        try:
            demo.run()
        except Unexpected as problem:
            print(f"demo: FAILED: {problem}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("demo: interrupted, stopping the agents", file=sys.stderr)
            return 130
        finally:
            demo.stop()
    try_next(args.backend)
    return 0


if __name__ == "__main__":
    sys.exit(main())
