"""From the arguments and variables of a process to ``RunOptions``: the parser of ``rdzv-run``, and who is to blame."""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import functools
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rdzv_launcher.completion import PrintCompletion
from rdzv_launcher.run.options import KEYS, OPTIONS, RunOptions, flag_of, help_of, kind_of, variables_of
from rdzv_launcher.version import ShowVersion
from rdzv_plugins.errors import UsageError
from rdzv_plugins.options import describe_options, parse_conf, parse_options, read_value

_ALONE = """\
usage: rdzv-run [flag ...] script [argument ...]
  rdzv-run --nproc-per-node=4 train.py
  rdzv-run --nnodes=2 --nproc-per-node=4 --rdzv-backend=parallel --rdzv-endpoint=HOST:29500 train.py    (on both nodes)
All flags: rdzv-run --help; backends: rdzv backends
"""
_GONE = {"--log-rotate": "Let logrotate do it, as workers append to their files: docs/guides/logs.md shows how."}
"""Flags that there were, and what to do instead."""
_TORCHS = "torch.distributed.run"


def parse_arguments(argv: Sequence[str]) -> RunOptions:
    """Parse ``argv`` (without the program's name), and read the variables. Exits with 2 as argparse does.

    Raises ``UsageError`` for a variable: argparse would blame the flag. An empty variable counts as set.
    """
    args = build_parser().parse(argv)
    for name in OPTIONS:
        found = next((each for each in variables_of(name) if each in os.environ), "")
        if found and name not in args.given:
            setattr(args, name, _from_text(name, found, os.environ[found]))
            args.given[name] = found
    return args


def read_keys(args: RunOptions) -> None:
    """Take the values that --rdzv-conf has for rdzv-run itself, and check all. A flag or a variable wins over a key.

    Raises ``UsageError`` that names the flag or the key.
    """
    conf = {name: value for name, value in parse_conf(args.rdzv_conf).items() if name in KEYS}
    by_key = parse_options(RunOptions, conf, "rdzv-run")
    for name in conf.keys() - args.given.keys():
        value = getattr(by_key, name)
        listed = "," in OPTIONS[name].metadata.get("metavar", "")
        setattr(args, name, value.replace(":", ",") if listed else value)
        args.given[name] = f"--rdzv-conf {name}"
    for name in args.given:
        metadata = OPTIONS[name].metadata
        try:
            if metadata["minimum"] is not None:
                read_value(getattr(args, name), OPTIONS[name].type, metadata)
        except ValueError:
            (takes,) = (each.type for each in describe_options(RunOptions) if each.name == name)
            raise UsageError(
                f"{flag_of(name)}={getattr(args, name)} is out of range", remedy=f"It takes {takes}."
            ) from None


@contextlib.contextmanager
def blaming(args: RunOptions) -> Iterator[None]:
    """Within this context, a ``UsageError`` about a flag that nobody has written names the variable or the key."""
    try:
        yield
    except UsageError as error:
        text = str(error)
        for name, source in args.given.items():
            if not source.startswith("--") or " " in source:
                text = re.sub(rf"--{name.replace('_', '[-_]')}(?![\w-])", source, text)
        error.args = (text,)
        raise


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
    group: Any = parser
    for name, option in OPTIONS.items():
        if option.metadata.get("flag"):
            if option.metadata["section"]:
                group = parser.add_argument_group(option.metadata["section"])
            _add(group, name, option)
    group.add_argument(
        "--version", action=ShowVersion, help="print the versions, and whether the native part is there, and exit"
    )
    parser.add_argument("--print-completion", "--print_completion", action=PrintCompletion)
    parser.add_argument("training_script", metavar="script", help="what each worker runs")
    parser.add_argument(
        "training_script_args", metavar="argument", nargs=argparse.REMAINDER, help="any arguments of the script"
    )
    parser.formatter_class = _Help
    return parser


def _add(group: Any, name: str, option: dataclasses.Field[Any]) -> None:
    """Declare the flag, which may also be written with underscores."""
    kind, choices = kind_of(name)
    how: dict[str, Any]
    if kind is bool:
        how = {"nargs": 0, "const": True}
    elif option.metadata["alone"]:
        how = {"type": str, "const": option.metadata["alone"]}
    else:
        several = str if option.metadata["repeated"] else comma_separated_list
        how = {"type": several if kind == list[str] else kind, "choices": choices}
    how |= {"metavar": option.metadata["metavar"]} if option.metadata["metavar"] else {}
    short, flag = option.metadata["short"], flag_of(name)
    spelt = dict.fromkeys([*([short] if short else []), flag, f"--{name}"])
    group.add_argument(*spelt, action=_Given, help=help_of(name), default=option.default, **how)


def comma_separated_list(text: str) -> list[str]:
    """The parts between commas; a double comma is a comma within a part."""
    return [part.replace("\0", ",") for part in text.replace(",,", "\0").split(",")]


class _Given(argparse.Action):
    """Sets an option by its flag, and notes that: so it is known afterwards what was asked for."""

    def __call__(self, _: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *__: object) -> None:
        assert isinstance(namespace, RunOptions)
        if OPTIONS[self.dest].metadata["repeated"]:
            values = [*(getattr(namespace, self.dest) or ()), values]
        setattr(namespace, self.dest, True if self.nargs == 0 else values)
        namespace.given[self.dest] = flag_of(self.dest)


def _from_text(name: str, variable: str, text: str) -> Any:
    """What the flag would have produced. Raises ``UsageError``."""
    kind, choices = kind_of(name)
    if kind is bool:
        try:
            return int(text) != 0
        except ValueError:
            raise UsageError(
                f"{variable}={text}: not a value that the flag takes", remedy="Flags take 0 or 1."
            ) from None
    if alone := OPTIONS[name].metadata["alone"]:  # 1 is the same as the flag alone, as for any switch
        return {"1": alone, "0": ""}.get(text.strip(), text)
    try:
        value = comma_separated_list(text) if kind == list[str] else kind(text)
    except ValueError:
        raise UsageError(f"{variable}={text}: not a valid {kind.__name__}") from None
    if choices is not None and value not in choices:
        raise UsageError(f"{variable}={text} is not one of {', '.join(choices)}")
    return value


class Parser(argparse.ArgumentParser):
    """Reads flags up to the script's name: what follows is the script's, which argparse would take for flags of ours.

    It also finds the unknown flag when the arguments cannot be parsed, as argparse may complain about something else.
    """

    _unknown = ""

    def parse(self, arguments: Sequence[str]) -> RunOptions:
        if not arguments:
            self.exit(2, _ALONE)
        flags, script = self._divide(arguments)
        # after a "--" nothing is taken for a flag, such as a script whose name begins with a minus
        own = [*flags, *(["--", script[0]] if script else [])]
        args = self.parse_args(own, RunOptions())
        args.training_script_args = list(script[1:])
        return args

    def error(self, message: str) -> NoReturn:
        """End with 2, as argparse does. Raises ``UsageError`` for a flag that the installed torchrun has."""
        unknown = self._unknown
        if instead := _GONE.get(unknown.replace("_", "-")):
            raise UsageError(f"{unknown} is no longer a flag of rdzv-run", remedy=instead)
        if unknown and _torch_knows(unknown):
            raise UsageError(
                f"{unknown} is a flag of the installed torchrun, but this rdzv-run is too old to know it",
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
            if len(meant) == 1 and meant[0].const and meant[0].nargs is None:
                # it can only be given after "=": what follows the flag may be the script
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
        import difflib  # costs more than the parser does

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


def _torch_knows(flag: str) -> bool:
    """True if the installed torchrun has this flag, in this spelling.

    torch is imported only if the text of its module contains the flag, so that a typo is answered at once.
    """
    if _TORCHS not in sys.modules and not any(f"{quote}{flag}{quote}" in _torchs_source() for quote in "\"'"):
        return False
    try:
        from torch.distributed.run import get_args_parser

        parser = get_args_parser()
    except (ImportError, OSError, ValueError):  # a broken installation; a PET_* variable that is not a valid number
        return False
    return any(flag in action.option_strings for action in parser._actions)


def _torchs_source() -> str:
    """The text of torch's module; empty if it is not where it has been so far."""
    import importlib.util  # only needed after a mistake

    try:
        spec = importlib.util.find_spec(_TORCHS.partition(".")[0])  # for a top-level package, this imports nothing
        places = spec.submodule_search_locations or () if spec else ()
        return "".join((Path(place) / "distributed/run.py").read_text(encoding="utf-8") for place in places)
    except (ImportError, ValueError, OSError):
        return ""
