"""The command line: torchrun's own parser, so that every flag and PET_* variable works, plus our few."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Iterator, Sequence

from torch.distributed.argparse_util import check_env, env
from torch.distributed.run import get_args_parser

from rdzv_launcher.version import ShowVersion
from rdzv_plugins.errors import UsageError

_UNSET_UNLESS_GIVEN = ("master_addr", "master_port", "node_rank", "rdzv_backend", "rdzv_id", "local_addr")
"""Destinations for which "not given" matters: torch's defaults would hide it."""


def build_parser() -> argparse.ArgumentParser:
    """torch's parser with our options added. Reads PET_* variables now, as torch's does."""
    parser: argparse.ArgumentParser = get_args_parser()
    parser.prog = "rdzv-run"
    parser.description = "torchrun with rendezvous backends as plug-ins. See also: rdzv backends"
    for dest in _UNSET_UNLESS_GIVEN:
        if f"PET_{dest.upper()}" not in os.environ:
            parser.set_defaults(**{dest: None})
    ours = parser.add_argument_group("rdzv-run options")
    ours.add_argument(
        "--exit-barrier-timeout",
        "--exit_barrier_timeout",
        action=env,
        type=float,
        default=300.0,
        help="Seconds after which a node that is done waits only for nodes that are known to live (default 300).",
    )
    ours.add_argument(
        "--enable-tiered-parallel-tcpstore",
        "--enable_tiered_parallel_tcpstore",
        action=env,
        type=str,
        default="false",
        help="torch_npu_run's switch for one store proxy per node: true (--rdzv-backend=tiered) or false.",
    )
    ours.add_argument(
        "--check",
        action=check_env,
        help="Say what can be known before the start, line by line, and end: nothing is started, nothing is left.",
    )
    ours.add_argument(
        "--rdzv-no-plugin",
        "--rdzv_no_plugin",
        action="append",
        metavar="NAME",
        default=None,
        help="Switch off the plug-in (or distribution) NAME; may be repeated. Also RDZV_DISABLE_PLUGINS=NAME,...",
    )
    ours.add_argument(
        "--rdzv-strict",
        "--rdzv_strict",
        action=check_env,
        help="Stop if any installed plug-in is broken, not only the selected one.",
    )
    ours.add_argument(
        "-v", "--verbose", action=check_env, help="Log more, and show tracebacks of errors (also RDZV_DEBUG=1)."
    )
    ours.add_argument(
        "--version", action=ShowVersion, help="Print the versions, and whether the native part is there, and end."
    )
    return parser


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse ``argv`` (without the program's name). Exits with 2 as argparse does; raises ``UsageError``.

    ``given`` in the result names the destinations that the user set, by flag or variable; ``by_variable`` those of
    them that no flag has set.
    """
    try:
        parser = build_parser()
    except ValueError as error:  # torch converts PET_* values of flags (0 or 1) while it builds the parser
        named = [f"{k}={v}" for k, v in os.environ.items() if k.startswith("PET_") and repr(v) in str(error)]
        raise UsageError(
            f"{' or '.join(named) or 'a PET_* variable'}: not a value that the flag takes", remedy="Flags take 0 or 1."
        ) from error
    variables = {action.dest: action for action in parser._actions if _variable(action.dest) in os.environ}
    defaults = {action.dest: action.default for action in parser._actions}
    # once without defaults: what is set then was given on the command line
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    kept, parser._defaults = parser._defaults, {}
    by_flag = frozenset(vars(parser.parse_args(list(argv))))
    for action in parser._actions:
        action.default = defaults[action.dest]
    parser._defaults = kept
    by_variable = variables.keys() - by_flag
    for dest in by_variable:
        _check_variable(variables[dest])
    args = parser.parse_args(list(argv))
    args.given, args.by_variable = by_flag | by_variable, frozenset(by_variable)
    return args


def _variable(dest: str) -> str:
    return f"PET_{dest.upper()}"


def _check_variable(action: argparse.Action) -> None:
    """Else argparse would blame a flag that nobody has written. Raises ``UsageError``."""
    text = os.environ[_variable(action.dest)]
    try:
        value = action.type(text) if callable(action.type) else text
    except (TypeError, ValueError, argparse.ArgumentTypeError):
        kind = getattr(action.type, "__name__", "value")
        raise UsageError(f"{_variable(action.dest)}={text}: not a valid {kind}") from None
    if action.choices is not None and value not in action.choices:
        raise UsageError(f"{_variable(action.dest)}={text} is none of {', '.join(map(str, action.choices))}")


@contextlib.contextmanager
def blaming_variables(args: argparse.Namespace) -> Iterator[None]:
    """A ``UsageError`` about a flag that nobody has written names the variable in its place."""
    try:
        yield
    except UsageError as error:
        text = str(error)
        for dest in args.by_variable:
            text = re.sub(rf"--{dest.replace('_', '[-_]')}(?![\w-])", _variable(dest), text)
        error.args = (text,)
        raise
