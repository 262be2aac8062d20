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


_GONE = {"--log-rotate": "Let logrotate do it, as workers append to their files: docs/how-to/logs.md shows how."}
"""Flags that there were, and what to do instead."""


class Parser(argparse.ArgumentParser):
    """Reads flags up to the script's name: what follows is the script's, which argparse would take for flags of ours.

    It also finds the unknown flag when the arguments cannot be parsed, as argparse may complain about something else.
    """

    _unknown = ""

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Like ``parse_args``; ``given`` in the result names the destinations that a flag has set."""
        if not arguments:
            self.exit(2, _ALONE)
        flags, script = self._divide(arguments)
        # after a "--" nothing is taken for a flag, such as a script whose name begins with a minus
        own = [*flags, *(["--", script[0]] if script else [])]
        args = self.parse_args(own, argparse.Namespace(given=frozenset()))
        args.training_script_args = list(script[1:])
        return args

    def error(self, message: str) -> NoReturn:
        """End with 2, as argparse does. Raises ``UsageError`` for a flag that the installed torchrun has."""
        # only needed here, like difflib below: both cost more than the parser does
        from rdzv_launcher.run.command_line.installed_torch import knows

        unknown = self._unknown
        if instead := _GONE.get(unknown.replace("_", "-")):
            raise UsageError(f"{unknown} is no longer a flag of rdzv-run", remedy=instead)
        if unknown and knows(unknown):
            raise UsageError(
                f"{unknown} is a flag of the installed torchrun, and this rdzv-run is too old to have it",
                remedy="Leave it out, or look for a newer release of rdzv-plugins.",
            )
        super().error(f"unrecognized arguments: {unknown}{self._similar(unknown)}" if unknown else message)

    def _divide(self, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
        """The flags with their values, and from the script's name on what is the script's.

        A value is added to each flag whose value is optional and was left out. After a flag that we do not have, there
        is no telling whether a value follows: what is after it is left out.
        """
        flags: list[str] = []
        rest = list(arguments)
        while rest and rest[0].startswith("-") and rest[0] != "-":
            flag, joined, _ = rest[0].partition("=")
            meant = self._meant_by(flag)
            if not meant and _is_name(flag):
                break
            word = rest.pop(0)
            if word == "--":
                return flags, rest
            flags.append(word)
            if not meant:
                self._unknown = flag
                return flags, []
            if isinstance(meant[0], ValueOrNone) and len(meant) == 1:
                flags[-1] = word if joined else f"{word}={meant[0].const}"
            elif not joined and rest and self._takes_next(flag, meant):
                flags.append(rest.pop(0))
        if rest[1:2] == ["--"]:  # argparse, and so torchrun, takes it for the end of the flags
            del rest[1]
        return flags, rest

    def _takes_next(self, flag: str, meant: Sequence[argparse.Action]) -> bool:
        """Whether the value of a flag is the next argument; short flags may be joined, and the last have its value."""
        if flag.startswith("--"):
            return all(action.nargs != 0 for action in meant)
        for at, letter in enumerate(flag[1:], start=1):
            action = self._option_string_actions.get(f"-{letter}")
            if action is None or action.nargs != 0:
                return action is not None and at == len(flag) - 1
        return False

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


def _is_name(word: str) -> bool:
    """Whether something with a minus in front is no flag, by argparse's rules: a number, or anything with a space."""
    return word[1:2].isdecimal() or " " in word


class _Help(argparse.HelpFormatter):
    """Shows each flag in one spelling only."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy.copy(action)
        shown.option_strings = [flag for flag in action.option_strings if "_" not in flag]
        return super()._format_action_invocation(shown)
