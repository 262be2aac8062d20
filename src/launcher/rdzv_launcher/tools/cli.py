"""``rdzv``: the tools around the launcher. Each sub-command imports only what it needs, so lists appear at once."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from rdzv_launcher.bench import arguments as bench
from rdzv_launcher.completion import PrintCompletion
from rdzv_launcher.console import logging_given_back, make_stdout_wait, report, setup_logging
from rdzv_launcher.tools import conformance, doctor, logs, new_backend, serve, stacks, status, timeline, top
from rdzv_launcher.version import ShowVersion
from rdzv_plugins.errors import debug_wanted
from rdzv_plugins.options import did_you_mean


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``rdzv`` command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="rdzv", description="Tools around rdzv-run.")
    parser.add_argument(
        "--version", action=ShowVersion, help="print the versions, and whether the native part is installed"
    )
    parser.add_argument("--print-completion", action=PrintCompletion)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    backends = commands.add_parser(
        "backends", help="list the installed rendezvous backends, and plug-ins that failed to load"
    )
    backends.add_argument("--json", action="store_true", help="print the list as JSON")
    for tool in _TOOLS.values():
        tool.configure(commands)
    words = sys.argv[1:] if argv is None else argv
    if not words:
        parser.print_help(sys.stderr)
        return 2
    if not words[0].startswith("-") and words[0] not in commands.choices:
        parser.error(f"unknown command {words[0]!r}{did_you_mean(words[0], commands.choices)}")
    args = parser.parse_args(words)
    with contextlib.nullcontext() if argv is None else logging_given_back():
        setup_logging("rdzv", verbose=debug_wanted())
        if argv is None:
            make_stdout_wait()
        try:
            return _backends(args) if args.command == "backends" else _TOOLS[args.command].run(args)
        except BrokenPipeError:  # whoever reads our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except Exception as error:
            return report("rdzv", error, verbose=debug_wanted())


def _backends(args: argparse.Namespace) -> int:
    from rdzv_plugins.plain_text import printable_data
    from rdzv_plugins.registry import PluginHost
    from rdzv_plugins.registry.report import as_data, as_text

    data = as_data(PluginHost.load())
    print(json.dumps(data, indent=2) if args.json else as_text(printable_data(data)), flush=True)
    return 0


_TOOLS: dict[str, Any] = {
    "bench": bench,
    "conformance": conformance,
    "doctor": doctor,
    "logs": logs,
    "new-backend": new_backend,
    "serve": serve,
    "stacks": stacks,
    "status": status,
    "timeline": timeline,
    "top": top,
}

if __name__ == "__main__":
    sys.exit(main())
