"""Workers that run on this machine, and those whose launcher is gone. Linux."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rdzv_launcher.tools.doctor.findings import Finding
from rdzv_plugins.linux.children import all_pids
from rdzv_plugins.linux.process_stat import read_stat
from rdzv_plugins.plain_text import some

_MARK = b"TORCHELASTIC_RUN_ID="
_TAKES_ORPHANS = ("systemd", "init", "tini", "dumb-init", "docker-init", "catatonit")
"""Names of the first process if it is not a launcher itself, as it may be in a container."""
_SHOWN = 10


def leftovers() -> Iterator[Finding]:
    """Workers of any launcher that sets torchrun's variables: the jobs here, and the workers that nobody waits for."""
    workers = {pid: run for pid in all_pids() if (run := _run_of(pid)) is not None}
    left = {pid: run for pid, run in workers.items() if _is_left(pid, workers)}
    runs = sorted({run for pid, run in workers.items() if pid not in left})
    left = {pid: run for pid, run in left.items() if run not in runs}  # otherwise a worker may have started it to stay
    said = f"workers of run {', '.join(runs)} are at work" if runs else "none is at work here"
    yield Finding("ok", "jobs", said)
    if not left:
        yield Finding("ok", "leftover processes", "none")
        return
    shown = some((f"{pid} (run {run})" for pid, run in sorted(left.items())), _SHOWN)
    yield Finding(
        "wrong",
        "leftover processes",
        f"{len(left)} of jobs whose launcher has gone: {shown}: they hold memory, devices and ports",
        f"Look at them, and end them: kill {' '.join(map(str, sorted(left)[:_SHOWN]))}",
    )


def _run_of(pid: int) -> str | None:
    """The run whose worker it is, or whose worker started it; None if there is none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return None
    runs = [each.removeprefix(_MARK) for each in variables if each.startswith(_MARK)]
    stat = read_stat(pid)
    return runs[0].decode(errors="replace") if runs and stat is not None and stat.lives else None


def _is_left(pid: int, workers: dict[int, str]) -> bool:
    """Whether the process above it and its siblings is the one that takes in orphans, and did not start it."""
    while (stat := read_stat(pid)) is not None:
        parent = stat.parent
        if parent not in workers:
            return _takes_orphans(parent)
        pid = parent
    return False


def _takes_orphans(pid: int) -> bool:
    """Whether processes below it may have lost their own parent; False for an unknown first process."""
    if pid == 1:
        return _name(pid) in _TAKES_ORPHANS
    stat = read_stat(pid)
    return stat is not None and _name(pid) == "systemd" and stat.session == pid


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return os.path.basename(file.read().strip())
    except OSError:
        return ""
