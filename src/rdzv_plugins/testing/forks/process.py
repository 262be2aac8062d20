"""What makes a fork a process of its own: what it has, what /proc shows of it, and how it ends."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Iterable, Mapping


def settle(stdout: int, stderr: int, directory: str, variables: Mapping[str, str]) -> None:
    """Give this process its own output (which may be the same descriptor twice), its directory and its variables."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, stream in ((nothing, 0), (stdout, 1), (stderr, 2)):
        os.dup2(fd, stream)
    for fd in {nothing, stdout, stderr}:
        os.close(fd)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(variables)


def show(words: Iterable[str], variables: Mapping[str, str]) -> None:
    """Make /proc show this command line and these variables, by which processes are found.

    They are written over those with which the forking program was started, as setproctitle does: it needs room for them
    there (``Forks``). A longer command line is cut off.
    """
    with open("/proc/self/stat") as file:
        start, _, middle, end = map(int, file.read().rpartition(")")[2].split()[45:49])
    shown = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in variables.items())
    if len(shown) > end - middle:
        raise RuntimeError(f"/proc cannot show {len(shown)} bytes of variables: no more than {end - middle}")
    line = b"\0".join(map(os.fsencode, words))[: middle - start - 1]
    for address, text, size in ((start, line, middle - start), (middle, shown, end - middle)):
        ctypes.memmove(address, text.ljust(size, b"\0"), size)


def end(code: object) -> None:
    """End as ``sys.exit`` does, but without tidying up torch's modules: what they would free ends with the process."""
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)
