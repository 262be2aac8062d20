"""The command line: torchrun's own parser, so that every flag and PET_* variable works, plus our few."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from torch.distributed.argparse_util import check_env, env
from torch.distributed.run import get_args_parser

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
        help="Seconds that a node whose workers are done waits for the others' (default 300).",
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
    return parser


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse ``argv`` (without the program's name). Exits with 2 as argparse does; raises ``UsageError``.

    ``given`` in the result names the destinations that the user set, by flag or variable.
    """
    try:
        parser = build_parser()
    except ValueError as error:  # torch converts PET_* values of flags (0 or 1) while it builds the parser
        named = [f"{k}={v}" for k, v in os.environ.items() if k.startswith("PET_") and repr(v) in str(error)]
        raise UsageError(
            f"{' or '.join(named) or 'a PET_* variable'}: not a value that the flag takes", remedy="Flags take 0 or 1."
        ) from error
    args = parser.parse_args(list(argv))
    # again without defaults: what is set now was given, on the command line or by PET_*
    for action in parser._actions:
        if f"PET_{action.dest.upper()}" not in os.environ:
            action.default = argparse.SUPPRESS
    parser._defaults.clear()
    args.given = frozenset(vars(parser.parse_args(list(argv))))
    return args
