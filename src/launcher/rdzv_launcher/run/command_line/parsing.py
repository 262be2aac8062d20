"""From the arguments and the variables of a process to the values of all options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from rdzv_launcher.run.command_line.options import Switch, Value
from rdzv_launcher.run.command_line.parser import build_parser
from rdzv_launcher.run.command_line.variables import source_of


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse ``argv`` (without the program's name). Exits with 2 as argparse does; raises ``UsageError``.

    ``given`` in the result names the destinations that the user set, by flag or variable; ``by_variable`` those of them
    that no flag has set.
    """
    parser = build_parser()
    args = parser.parse(argv)
    by_variable = set()
    for option in parser._actions:
        if isinstance(option, Value | Switch) and option.dest not in args.given and (name := source_of(option.dest)):
            setattr(args, option.dest, option.from_text(name, os.environ[name]))
            by_variable.add(option.dest)
    args.given, args.by_variable = args.given | by_variable, frozenset(by_variable)
    return args
