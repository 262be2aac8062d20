"""``rdzv logs DIR``: finds the log files of a rank, those of the round that failed, or everybody's last lines.

It reads the indexes that agents have written beside the log files of their workers, or whatever is left of them.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from msgspec import DecodeError, Meta, Struct, field, to_builtins
from msgspec.json import decode
from msgspec.structs import replace

from rdzv_launcher.run.names import compressed, named
from rdzv_launcher.run.workers.failures import describe_exit
from rdzv_launcher.run.workers.output.growing_file import all_of, last_lines
from rdzv_launcher.run.workers.output.log_files import INDEX, WorkerRecord
from rdzv_plugins.errors import UsageError
from rdzv_plugins.plain_text import many, printable


def size_of(path: str) -> int:
    """How many bytes there are, in all files of the stream."""
    return sum(os.path.getsize(each) for each in all_of(path)) if path else 0


_DEPTH = 3
"""How many levels of directories are searched for an index: LOGS, or a directory in which nodes have their own."""

_ROUND = re.compile(r"attempt_\d+(\.round_\d+)?")
"""Directories of rounds, which have no index of their own."""
_MOST_S = 1e11
"""Later than any time that a clock has."""


class LogFile(Struct, frozen=True):
    """A worker in one round, with everything that its node's index says about it."""

    worker: WorkerRecord
    directory: str
    """The directory of the index, to which the worker's paths are relative."""
    began: float
    ended: float | None
    """When the worker ended, in seconds of its machine's clock; None: its end was not written."""

    @property
    def failed(self) -> bool:
        return bool(self.worker.exit_code) and not self.worker.stopped

    def path(self, stream: str) -> str:
        """The path of ``stdout`` or ``stderr``; empty if that went to no file."""
        found = getattr(self.worker, stream)
        return os.path.join(self.directory, found) if found else ""


class NodeLogs(Struct, frozen=True):
    """What one agent has written."""

    directory: str
    entries: tuple[LogFile, ...]
    """Its entries, in the order in which the workers began."""
    unreadable: int
    """How many of its lines were not written by us."""

    @property
    def began(self) -> float:
        return min(each.began for each in self.entries)

    @property
    def rounds(self) -> frozenset[tuple[str, int, int]]:
        """The rounds of this node: nodes of the same job have some in common."""
        return frozenset(
            (each.worker.run, each.worker.round, each.worker.store_port)
            for each in self.entries
            if each.worker.store_port
        )

    @property
    def places(self) -> frozenset[tuple[int, int, int]]:
        """The places of this node's workers: nodes of the same job have none in common."""
        return frozenset((each.worker.round, each.worker.store_port, each.worker.rank) for each in self.entries)


def find_nodes(directory: str) -> list[NodeLogs]:
    """All nodes below ``directory``, newest first. Raises ``UsageError`` if there is nothing."""
    if not os.path.isdir(directory):
        what = "is not a directory" if os.path.exists(directory) else "does not exist"
        raise UsageError(f"{directory} {what}", remedy="Give a job's --log-dir, or a directory in it.")
    nodes = [read_node(each) for each in _with_index(directory)]
    found = [each for each in nodes if each.entries]
    if not found:
        broken = sum(each.unreadable for each in nodes)
        why = f"has no readable {INDEX}" if broken else f"has no {INDEX} with workers in it"
        raise UsageError(
            f"{directory} {why}",
            remedy="rdzv-run writes it into the --log-dir when workers start; torchrun and --logs-specs do not.",
        )
    return sorted(found, key=lambda node: node.began, reverse=True)


def newest_job(nodes: list[NodeLogs]) -> list[NodeLogs]:
    """Those of ``nodes``, newest first, that belong to the same job as the first.

    They had a round in common, but no rank in it: another launch with its own port has the same rounds.
    """
    job, rounds, places, rest = [nodes[0]], set(nodes[0].rounds), set(nodes[0].places), nodes[1:]
    while node := next((each for each in rest if each.rounds & rounds and not each.places & places), None):
        job.append(node)
        rest = [each for each in rest if each is not node]
        rounds |= node.rounds
        places |= node.places
    return job


def _with_index(directory: str) -> Iterator[str]:
    base = directory.rstrip(os.sep).count(os.sep)
    for path, names, files in os.walk(directory):
        if INDEX in files:
            yield path
        deep = path.rstrip(os.sep).count(os.sep) - base >= _DEPTH
        names[:] = [] if deep else [each for each in names if not _ROUND.fullmatch(each)]


def read_node(directory: str) -> NodeLogs:
    """The index in ``directory``. What cannot be read is left out, and counted."""
    found: dict[tuple[int, int, int], LogFile] = {}
    unreadable = 0
    try:
        # if it is a pipe, which others may have made there, nobody waits for its other end
        file = os.open(os.path.join(directory, INDEX), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(file, "rb") as index:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return NodeLogs(directory, (), 1)
            lines = index.read().split(b"\n")
    except OSError:
        return NodeLogs(directory, (), 1)
    for line in lines[:-1]:  # after the last line end there is nothing, or something that is still being written
        if not line:
            continue
        try:
            said = decode(line, type=_Line)
            if said.event == "moved":
                found = {key: _moved(each, said.before, said.after) for key, each in found.items()}
                continue
            worker = _checked(decode(line, type=WorkerRecord))
        except (DecodeError, ValueError, RecursionError):
            unreadable += 1
            continue
        key = (worker.round, worker.local_rank, worker.pid)
        began = found[key].began if said.event == "ended" and key in found else said.time
        found[key] = LogFile(worker, directory, began, said.time if said.event == "ended" else None)
    return NodeLogs(directory, tuple(found.values()), unreadable)


class _Line(Struct):
    """What every line says; most also say what is in ``WorkerRecord``."""

    event: Literal["started", "ended", "moved"]
    time: Annotated[float, Meta(gt=-_MOST_S, lt=_MOST_S)]
    before: str = field(default="", name="from")
    after: str = field(default="", name="to")


def _checked(worker: WorkerRecord) -> WorkerRecord:
    """The worker, if its paths lead nowhere else. Raises ``ValueError``."""
    paths = {name: None if (said := getattr(worker, name)) is None else _inside(said) for name in ("stdout", "stderr")}
    return replace(worker, run=printable(worker.run), host=printable(worker.host), **paths)


def _inside(path: str) -> str:
    """A path that is valid, and does not lead elsewhere. Raises ``ValueError``."""
    found = os.path.normpath(path)
    if b"\0" in os.fsencode(found) or os.path.isabs(found) or found.split(os.sep)[0] == os.pardir:
        raise ValueError(path)
    return found


def _moved(entry: LogFile, before: str, after: str) -> LogFile:
    def name(path: str | None) -> str | None:
        first, slash, rest = (path or "").partition(os.sep)
        return f"{_inside(after)}{slash}{rest}" if first == before else path

    worker = entry.worker
    return replace(entry, worker=replace(worker, stdout=name(worker.stdout), stderr=name(worker.stderr)))


_LONGEST = 8000


def listing(entries: Sequence[LogFile]) -> Iterator[str]:
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


def headline(number: int, entries: Sequence[LogFile]) -> str:
    """One line about a round: how many workers, since when, and who has failed."""
    hosts, began = {each.worker.host for each in entries}, min(each.began for each in entries)
    workers = many(len(entries), "worker")
    where = next(iter(hosts)) if len(hosts) == 1 else f"{len(hosts)} hosts"
    failed = sorted((each for each in entries if each.failed), key=lambda each: each.ended or 0.0)
    end = ""
    if failed:
        first = failed[0].worker
        end = f"; rank {first.rank} failed first: {describe_exit(first.exit_code or 0)}"
    elif open_ := [each.worker.rank for each in entries if each.ended is None]:
        end = f"; no end recorded for {named(open_)}"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began))
    return f"round {number}: {workers} on {where}, from {when}{end}"


def last_words(entries: Sequence[LogFile], streams: Sequence[str], count: int) -> Iterator[str]:
    """The last lines of each worker's files."""
    for each in entries:
        worker = each.worker
        yield f"rank {worker.rank} on {worker.host}, {_end(each)}"
        for stream in streams:
            path = each.path(stream)
            if not path:
                yield f"  its {stream} was not written to a file"
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


def _end(entry: LogFile) -> str:
    if entry.worker.exit_code is None:
        return "still running, or its agent was killed"
    return describe_exit(entry.worker.exit_code) + (", stopped" if entry.worker.stopped else "")


_STREAMS = ("stdout", "stderr")
_LINES = 20
"""How many lines are shown of each failed worker, unless asked otherwise."""


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    what = "find the log files of a rank, or of the round that failed"
    add = commands.add_parser("logs", help=what).add_argument
    add("directory", metavar="DIR", help="a job's --log-dir, or a directory with those of all nodes")
    add("--rank", type=int, metavar="N", help="print the output of this global rank, byte for byte")
    failed = "show the last round in which a worker failed, which one, and the stacks of a job that hung"
    add("--failed", action="store_true", help=failed)
    add("--round", type=int, metavar="N", help="choose this round (default: the last)")
    add("--tail", type=int, metavar="N", help="show the last N lines of each worker")
    add("--stream", choices=_STREAMS, help="show only this stream (default: both)")
    add("--json", action="store_true", help="print the index of the workers as JSON")


def run(args: argparse.Namespace) -> int:
    """Print; returns the exit code: 1 if --failed finds neither a failure nor a hang. Raises ``UsageError``."""
    if args.tail is not None and args.tail < 1:
        raise UsageError(f"--tail={args.tail} is not a number of lines", remedy="Give 1 or more.")
    if args.failed and args.round is not None:
        raise UsageError("--failed and --round both choose a round", remedy="Keep one of them.")
    nodes = find_nodes(args.directory)
    job = newest_job(nodes)
    entries = sorted(
        (entry for node in job for entry in node.entries), key=lambda each: (each.worker.round, each.worker.rank)
    )
    if (unreadable := sum(node.unreadable for node in job)) > 0:
        print(f"rdzv: skipped {many(unreadable, 'unreadable line')} of the index", file=sys.stderr)
    if others := len(nodes) - len(job):
        print(f"rdzv: {args.directory} also has logs of {many(others, 'agent')} of other jobs", file=sys.stderr)
    chosen = _round(args, entries)
    hangs = list(stored_stacks({node.directory for node in job})) if args.failed and not args.json else []
    if not chosen:
        print("no worker failed by itself" if hangs else "no worker failed", *hangs, sep="\n", flush=True)
        return 0 if hangs else 1
    if args.rank is not None:
        chosen = _rank(args.rank, chosen)
    if args.json:
        print(json.dumps([to_builtins(each) | {"failed": each.failed} for each in chosen], indent=2), flush=True)
    elif args.rank is not None and args.tail is None:
        _print_whole(chosen, args.stream)
    elif args.tail is not None or args.failed:
        failed_alone = args.failed and args.tail is None and args.rank is None
        whose = [each for each in chosen if each.failed] if failed_alone else chosen
        lines = last_words(whose, (args.stream,) if args.stream else _STREAMS, args.tail or _LINES)
        print(headline(chosen[0].worker.round, chosen), *lines, *hangs, sep="\n", flush=True)
    else:
        print(*listing(chosen), sep="\n", flush=True)
    return 0


def _round(args: argparse.Namespace, entries: Sequence[LogFile]) -> list[LogFile]:
    """The entries of the requested round; all of them if they are to be listed; none if nobody has failed."""
    rounds = sorted({each.worker.round for each in entries})
    number = rounds[-1]
    if args.failed:
        failed = [each.worker.round for each in entries if each.failed]
        if not failed:
            return []
        number = failed[-1]
    elif args.round is not None:
        number = args.round
    elif args.rank is None and args.tail is None:
        return list(entries)
    chosen = [each for each in entries if each.worker.round == number]
    if not chosen:
        raise UsageError(f"no round {number} here", remedy=f"Rounds here: {compressed(rounds)}.")
    return chosen


def _rank(rank: int, entries: Sequence[LogFile]) -> list[LogFile]:
    chosen = [each for each in entries if each.worker.rank == rank]
    if not chosen:
        worker = entries[0].worker
        raise UsageError(
            f"round {worker.round} has no rank {rank} here",
            remedy=f"It has {compressed([each.worker.rank for each in entries])}. Choose another round with --round=N; "
            "the logs of other nodes may be in other directories.",
        )
    return chosen


def _print_whole(entries: Sequence[LogFile], only: str | None) -> None:
    """Print whole files, byte for byte: for one stream, nothing else."""
    for entry in entries:
        streams = (only,) if only else _STREAMS
        if not any(map(entry.path, streams)):
            what = only or "output"
            raise UsageError(f"{what} of rank {entry.worker.rank} was not written to a file", remedy="See --redirects.")
        if not any(size_of(entry.path(stream)) for stream in streams):
            print(f"rdzv: the files of rank {entry.worker.rank} are empty or gone", file=sys.stderr)
        for stream in streams:
            path = entry.path(stream)
            if not path or (not only and not size_of(path)):
                continue
            if not only:
                sys.stdout.write(f"==> {shown(path)} <==\n")
            sys.stdout.flush()
            for each in all_of(path):
                with open(each, "rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.buffer.flush()
