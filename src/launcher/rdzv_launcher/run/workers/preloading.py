"""--preload: the modules that are imported before workers are forked."""

from __future__ import annotations

import argparse
import re

from rdzv_launcher.run.workers.program import Kind, Program
from rdzv_plugins.errors import UsageError
from rdzv_plugins.options import parse_conf

PRELOAD = "preload"
"""The key of --rdzv-conf with the same meaning."""


def read_modules(args: argparse.Namespace, program: Program) -> tuple[str, ...]:
    """The modules of a parsed command line; empty for none. A flag wins over --rdzv-conf. Raises ``UsageError``."""
    flag, text = "--preload", args.preload
    if not text:
        flag, text = "--rdzv-conf preload", parse_conf(args.rdzv_conf).get(PRELOAD, "")
    modules = tuple(filter(None, (part.strip() for part in re.split("[,:]", text))))
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(
                f"{flag}={text}: {module!r} is no name of a module",
                remedy="For example --preload=torch,torch.distributed",
            )
    if modules and program.kind is Kind.COMMAND:
        raise UsageError(
            f"{flag}={text}: with --no-python the workers are no Python programs of which that is known",
            remedy="Leave one of them out.",
        )
    return modules
