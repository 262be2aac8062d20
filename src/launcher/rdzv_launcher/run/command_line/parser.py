"""The parser of ``rdzv-run``: all flags, the form of their help, and what is said about an unknown flag."""

from __future__ import annotations

import argparse
import copy
import functools
from collections.abc import Sequence
from typing import NoReturn

from rdzv_launcher.run.command_line.options import ValueOrNone
from rdzv_launcher.run.command_line.own import add_our_own
from rdzv_launcher.run.command_line.torchrun import add_torchruns
from rdzv_plugins.errors import UsageError


def build_parser() -> Parser:
    """The parser with all flags. It does not read variables: ``parse_arguments`` does."""
    parser = Parser(
        prog="rdzv-run",
        usage="%(prog)s [flag ...] script [argument ...]",
        description="torchrun with rendezvous backends as plug-ins. Each flag may also be written with "
        "underscores, or set by a variable: PET_NNODES=2 is --nnodes=2. See also: rdzv backends",
        # argparse creates a formatter for some flags; asking for the width loads shutil with all of its decompressors
        formatter_class=functools.partial(_Help, width=80),
    )
    add_torchruns(parser)
    add_our_own(parser)
    parser.formatter_class = _Help
    return parser


_ALONE = """\
usage: rdzv-run [flag ...] script [argument ...]
  rdzv-run --nproc-per-node=4 train.py
  rdzv-run --nnodes=2 --nproc-per-node=4 --rdzv-backend=parallel --rdzv-endpoint=HOST:29500 train.py    (on both nodes)
All flags: rdzv-run --help; backends: rdzv backends
"""


class Parser(argparse.ArgumentParser):
    """Finds the unknown flag when the arguments cannot be parsed, as argparse may complain about something else."""

    arguments: Sequence[str] = ()
    """The arguments being parsed."""

    def error(self, message: str) -> NoReturn:
        """End with 2, as argparse does. Raises ``UsageError`` for a flag that the installed torchrun has."""
        if not self.arguments:
            self.exit(2, _ALONE)
        # only needed here, like difflib below: both cost more than the parser does
        from rdzv_launcher.run.command_line.installed_torch import knows

        unknown = self._first_unknown()
        if unknown and knows(unknown):
            raise UsageError(
                f"{unknown} is a flag of the installed torchrun, and this rdzv-run is too old to have it",
                remedy="Leave it out, or look for a newer release of rdzv-plugins.",
            )
        super().error(f"unrecognized arguments: {unknown}{self._similar(unknown)}" if unknown else message)

    def with_values(self, arguments: Sequence[str]) -> list[str]:
        """The arguments, with a value added to each flag whose value is optional and was left out."""
        found, words = [], iter(arguments)
        for word in words:
            found.append(word)
            flag, joined, _ = word.partition("=")
            if not word.startswith("-") or word in ("-", "--"):
                break  # the script
            meant = self._meant_by(flag)
            if len(meant) == 1 and isinstance(meant[0], ValueOrNone):
                found[-1] = word if joined else f"{word}={meant[0].const}"
            elif not joined and all(action.nargs != 0 for action in meant) and not _is_glued(flag):
                found += [next(words)] if meant and len(found) < len(arguments) else []
        return [*found, *words]

    def _first_unknown(self) -> str:
        """The first flag before the script that we do not have; empty if all are known."""
        arguments = iter(self.arguments)
        for argument in arguments:
            if not argument.startswith("-") or argument in ("-", "--") or argument[1].isdecimal() or " " in argument:
                return ""  # the script
            flag, joined, _ = argument.partition("=")
            glued = joined or _is_glued(flag)
            meant = self._meant_by(flag)
            if not meant:
                return flag
            if not glued and all(action.nargs != 0 for action in meant):
                next(arguments, None)  # its value
        return ""

    def _meant_by(self, flag: str) -> list[argparse.Action]:
        """The options that a flag may mean: it may be abbreviated, and a short one may have its value attached."""
        spelt = self._option_string_actions
        if flag in spelt:
            return [spelt[flag]]
        if flag.startswith("--"):
            return [action for known, action in spelt.items() if known.startswith(flag)]
        return [spelt[flag[:2]]] if flag[:2] in spelt else []

    def _similar(self, unknown: str) -> str:
        import difflib

        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        found = difflib.get_close_matches(unknown.replace("_", "-"), flags, n=1, cutoff=0.7)
        return f"; did you mean {found[0]}?" if found else ""


def _is_glued(flag: str) -> bool:
    """Whether a short flag has its value directly attached."""
    return len(flag) > 2 and not flag.startswith("--")


class _Help(argparse.HelpFormatter):
    """Shows each flag in one spelling only."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy.copy(action)
        shown.option_strings = [flag for flag in action.option_strings if "_" not in flag]
        return super()._format_action_invocation(shown)
