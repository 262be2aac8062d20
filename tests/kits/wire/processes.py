"""Programs as real processes that end with the test, whatever happens in it."""

from __future__ import annotations

import itertools
import os
import select
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kits import TESTS
from rdzv_plugins.testing.processes import clean_environment

SCRIPTS = TESTS / "wire" / "workers"


@contextmanager
def spawned(
    commands: Sequence[Sequence[object]], environments: Sequence[dict[str, str]] = (), **shared: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """One process for each command; stdin and stdout are pipes, stderr goes where stdout does."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for command, own in itertools.zip_longest(commands, environments, fillvalue={}):
            processes.append(
                subprocess.Popen(
                    [str(part) for part in command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    env=clean_environment() | shared | own,
                )
            )
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            with process:  # closes the pipes
                process.wait(60)


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line that it prints; "" when it prints no more.

    The pipe is read byte by byte: a line that lies in a buffer is not seen by ``communicate``.
    """
    assert process.stdout
    pipe, come = process.stdout.fileno(), b""
    while not come.endswith(b"\n"):
        assert select.select([pipe], [], [], 60)[0], f"process {process.pid} says no more than {come!r}"
        if not (part := os.read(pipe, 1)):
            break
        come += part
    return come.decode()


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin
    print(line, file=process.stdin, flush=True)


def outputs(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """What each printed; all have to end well."""
    texts = []
    for number, process in enumerate(processes):
        try:
            text, _ = process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"process {number} still runs after 180 s") from None
        assert process.returncode == 0, f"process {number} exited with {process.returncode}:\n{text}"
        texts.append(text)
    return texts
