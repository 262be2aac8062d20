"""``rdzv logs DIR``: finds the log files of a rank, those of the round that failed, or everybody's last lines."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from rdzv_launcher.run.rank_names import compressed
from rdzv_launcher.tools.logs.indexes import Entry, find_nodes, newest_job
from rdzv_launcher.tools.logs.reading import copy_all, size_of
from rdzv_launcher.tools.logs.text import headline, last_words, listing, shown, stored_stacks
from rdzv_plugins.errors import UsageError

_STREAMS = ("stdout", "stderr")
_LINES = 20
"""How many lines are shown of each failed worker, unless asked otherwise."""


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    parser = commands.add_parser("logs", help="find the log files of a rank, or of the failed round, in --log-dir")
    parser.add_argument(
        "directory", metavar="DIR", help="the --log-dir of a job, or a directory that contains those of its nodes"
    )
    parser.add_argument("--rank", type=int, metavar="N", help="print what this global rank has written, byte for byte")
    parser.add_argument(
        "--failed",
        action="store_true",
        help="the last round in which a worker failed, and which one; and the stacks of a job that hung",
    )
    parser.add_argument("--round", type=int, metavar="N", help="this round (default: the last)")
    parser.add_argument("--tail", type=int, metavar="N", help="the last N lines of each worker")
    parser.add_argument("--stream", choices=_STREAMS, help="only this one (default: both)")
    parser.add_argument("--json", action="store_true", help="print what is known about the workers as JSON")


def run(args: argparse.Namespace) -> int:
    """Print; returns the exit code: 1 if --failed finds neither a failure nor a hang. Raises ``UsageError``."""
    if args.tail is not None and args.tail < 1:
        raise UsageError(f"--tail={args.tail} is no number of lines", remedy="1 or more.")
    if args.failed and args.round is not None:
        raise UsageError("--failed and --round both say which round", remedy="Keep one of them.")
    nodes = find_nodes(args.directory)
    job = newest_job(nodes)
    entries = sorted(
        (entry for node in job for entry in node.entries), key=lambda each: (each.worker.round, each.worker.rank)
    )
    if (unreadable := sum(node.unreadable for node in job)) > 0:
        print(f"rdzv: {unreadable} line(s) of the index cannot be read, and are left out", file=sys.stderr)
    if others := len(nodes) - len(job):
        print(
            f"rdzv: of {others} more agent(s) of other jobs, see their directories below {args.directory}",
            file=sys.stderr,
        )
    chosen = _round(args, entries)
    hangs = list(stored_stacks({node.directory for node in job})) if args.failed and not args.json else []
    if not chosen:
        print(
            *(["no worker has failed by itself", *hangs] if hangs else ["no worker has failed"]), sep="\n", flush=True
        )
        return 0 if hangs else 1
    if args.rank is not None:
        chosen = _rank(args.rank, chosen)
    if args.json:
        print(json.dumps([to_builtins(each) | {"failed": each.failed} for each in chosen], indent=2), flush=True)
    elif args.rank is not None and args.tail is None:
        _print_whole(chosen, args.stream)
    elif args.tail is not None or args.failed:
        lines = last_words(
            [each for each in chosen if each.failed]
            if args.failed and args.tail is None and args.rank is None
            else chosen,
            (args.stream,) if args.stream else _STREAMS,
            args.tail or _LINES,
        )
        print(headline(chosen[0].worker.round, chosen), *lines, *hangs, sep="\n", flush=True)
    else:
        print(*listing(chosen), sep="\n", flush=True)
    return 0


def _round(args: argparse.Namespace, entries: Sequence[Entry]) -> list[Entry]:
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
        raise UsageError(f"there is no round {number}", remedy=f"There are {compressed(rounds)}.")
    return chosen


def _rank(rank: int, entries: Sequence[Entry]) -> list[Entry]:
    chosen = [each for each in entries if each.worker.rank == rank]
    if not chosen:
        worker = entries[0].worker
        raise UsageError(
            f"round {worker.round} has no rank {rank} here",
            remedy=f"It has {compressed([each.worker.rank for each in entries])}. --round=N asks for another round; "
            "other nodes may have their logs in another directory.",
        )
    return chosen


def _print_whole(entries: Sequence[Entry], only: str | None) -> None:
    """Print whole files, byte for byte: for one stream, nothing else."""
    for entry in entries:
        streams = (only,) if only else _STREAMS
        if not any(map(entry.path, streams)):
            what = only or "output"
            raise UsageError(f"the {what} of rank {entry.worker.rank} went to no file", remedy="See --redirects.")
        if not any(size_of(entry.path(stream)) for stream in streams):
            print(f"rdzv: the files of rank {entry.worker.rank} are empty or gone", file=sys.stderr)
        for stream in streams:
            path = entry.path(stream)
            if not path or (not only and not size_of(path)):
                continue
            if not only:
                sys.stdout.write(f"==> {shown(path)} <==\n")
            sys.stdout.flush()
            copy_all(path, sys.stdout.buffer)
    sys.stdout.buffer.flush()
