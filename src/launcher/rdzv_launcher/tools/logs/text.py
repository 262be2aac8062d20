"""What is shown of the indexes, for people."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterable, Iterator, Sequence

from rdzv_launcher.run.rank_names import named
from rdzv_launcher.run.workers.failures import describe_exit
from rdzv_launcher.run.workers.output.rotated import last_lines
from rdzv_launcher.tools.logs.indexes import Entry
from rdzv_launcher.tools.logs.reading import size_of
from rdzv_plugins.plain_text import printable

_LONGEST = 8000


def listing(entries: Sequence[Entry]) -> Iterator[str]:
    """Every worker of every round, with its files."""
    for number in sorted({each.worker.round for each in entries}):
        mine = [each for each in entries if each.worker.round == number]
        yield headline(number, mine)
        for each in mine:
            worker = each.worker
            yield (
                f"  rank {worker.rank}  {worker.host}  local rank {worker.local_rank}  pid {worker.pid}  {_end(each)}"
            )
            for path in filter(None, map(each.path, ("stdout", "stderr"))):
                yield f"    {shown(path)} ({size_of(path):,} bytes)"


def headline(number: int, entries: Sequence[Entry]) -> str:
    """One line about a round: how many workers, since when, and who has failed."""
    hosts, began = {each.worker.host for each in entries}, min(each.began for each in entries)
    workers = f"{len(entries)} worker{'' if len(entries) == 1 else 's'}"
    where = next(iter(hosts)) if len(hosts) == 1 else f"{len(hosts)} hosts"
    failed = sorted((each for each in entries if each.failed), key=lambda each: each.ended or 0.0)
    end = ""
    if failed:
        first = failed[0].worker
        end = f"; rank {first.rank} failed first: {describe_exit(first.exit_code or 0)}"
    elif open_ := [each.worker.rank for each in entries if each.ended is None]:
        end = f"; of {named(open_)} no end is written"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began))
    return f"round {number}: {workers} on {where}, from {when}{end}"


def last_words(entries: Sequence[Entry], streams: Sequence[str], count: int) -> Iterator[str]:
    """The last lines of each worker's files."""
    for each in entries:
        worker = each.worker
        yield f"rank {worker.rank} on {worker.host}, {_end(each)}"
        for stream in streams:
            path = each.path(stream)
            if not path:
                yield f"  its {stream} went to no file"
                continue
            try:
                lines = last_lines(path, count)
            except OSError as error:
                yield f"  {shown(path)}: {error.strerror}"
                continue
            yield f"  {shown(path)}{'' if lines else ' is empty or gone'}"
            yield from (f"  | {printable(line.expandtabs(4), _LONGEST)}" for line in lines)


def stored_stacks(directories: Iterable[str]) -> Iterator[str]:
    """What agents have stored when a job hung, or its workers would not end: why, and the sentence that sums it up."""
    for directory in sorted(directories):
        for path in sorted(glob.glob(os.path.join(glob.escape(directory), "**", "stacks-*.log"), recursive=True)):
            if os.path.isfile(path):
                with open(path, errors="replace") as file:
                    why, summary = (printable(file.readline(_LONGEST).rstrip()) for _ in range(2))
                yield f"{why}: {shown(path)}"
                yield f"  | {summary}"


def shown(path: str) -> str:
    """A path as text: directories, too, may have any name."""
    return printable(path, _LONGEST)


def _end(entry: Entry) -> str:
    if entry.worker.exit_code is None:
        return "runs, or its agent was killed"
    return describe_exit(entry.worker.exit_code) + (", stopped" if entry.worker.stopped else "")
