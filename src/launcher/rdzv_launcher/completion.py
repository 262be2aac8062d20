"""``--print-completion bash|zsh|tcsh`` of both commands: a script for the shell, made from the parser."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import Any

SHELLS = ["bash", "zsh", "tcsh"]


class PrintCompletion(argparse.Action):
    """Prints the script and ends with 0."""

    def __init__(self, option_strings: list[str], dest: str, **options: Any) -> None:
        super().__init__(
            option_strings,
            dest,
            choices=SHELLS,
            help="print a script that completes this command's flags in such a shell, and exit",
        )

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, *__: object) -> None:
        print(completion(parser, shell), flush=True)
        parser.exit()


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script. With subcommands the word that is completed may be one of those, or a flag of it."""
    return _tcsh(parser) if shell == "tcsh" else _WRAPPERS[shell].format(**_names(parser), candidates=_function(parser))


def _names(parser: argparse.ArgumentParser) -> dict[str, str]:
    return {"program": parser.prog, "name": f"_{parser.prog.replace('-', '_')}"}


def _commands(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each parser with its subcommand: ``/bench/store``, for example; the first is the parser itself, at ``/``."""
    yield path or "/", parser
    for name, each in _subcommands(parser).items():
        yield from _commands(each, f"{path}/{name}")


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return dict(found[0]) if found else {}


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    """In one spelling each, as in the help."""
    found = [flag for each in parser._actions if each.help != argparse.SUPPRESS for flag in each.option_strings]
    return [flag for flag in found if "_" not in flag]


def _values(parser: argparse.ArgumentParser) -> Iterator[tuple[list[str], list[str]]]:
    """The spellings of each flag that takes the next word, and the values that there are; none: any."""
    for each in parser._actions:
        if each.option_strings and each.nargs != 0 and not each.const:  # not where the value may be left out
            yield list(each.option_strings), [str(value) for value in each.choices or ()]


def _function(parser: argparse.ArgumentParser) -> str:
    """A shell function that prints the candidates after the words it is given; it fails where any file will do.

    The words are the flags and arguments before the one that is completed.
    """
    walk, after_flag, words = list[str](), list[str](), list[str]()
    for path, each in _commands(parser):
        for name in _subcommands(each):
            inner = f"{path.rstrip('/')}/{name}"
            walk.append(f"      {shlex.quote(f'{path} {name}')}) at={shlex.quote(inner)} ;;")
        for spellings, values in _values(each):
            pattern = "|".join(shlex.quote(f"{path} {flag}") for flag in spellings)
            walk.append(f"      {pattern}) flag=$word ;;")
            said = f"printf '%s\\n' {shlex.join(values)}" if values else "return 1"
            after_flag.append(f"    {pattern}) {said}; return ;;")
        candidates = [*_subcommands(each), *_flags(each)]
        words.append(f"    {shlex.quote(path)}) printf '%s\\n' {shlex.join(candidates)} ;;")
    ended = "" if _subcommands(parser) else '      "/ "[!-]*) return 1 ;; # what follows the script is the script\'s\n'
    name = _names(parser)["name"]
    return "\n".join(
        [
            f"{name}_candidates() {{",
            "  local at=/ flag= word",
            '  for word in "$@"; do',
            '    [ "$word" = = ] && continue # bash takes it for a word of its own',
            '    if [ -n "$flag" ]; then flag=; continue; fi',
            '    case "$at $word" in',
            *walk,
            ended + "    esac",
            "  done",
            '  case "$at $flag" in',
            *after_flag,
            "  esac",
            '  case "$at" in',
            *words,
            "  esac",
            "}",
        ]
    )


def _tcsh(parser: argparse.ArgumentParser) -> str:
    """tcsh has a list of rules instead: values after flags, flags, and files."""
    rules, flags, seen = list[str](), dict[str, None](), set[str]()
    for _, each in _commands(parser):
        flags.update(dict.fromkeys(_flags(each)))
        for spellings, values in _values(each):
            for flag in set(spellings) - seen if values else ():
                seen.add(flag)
                rules.append(f"'n/{flag}/({' '.join(values)})/'")
    commands = _subcommands(parser)
    first = [f"'p/1/({' '.join(commands)})/'"] if commands else []
    return " ".join([f"complete {parser.prog}", *sorted(rules), f"'c/-/({' '.join(flags)})/'", *first, "'p/*/f/'"])


_WRAPPERS = {
    "bash": """{candidates}
{name}() {{
  local IFS=$'\\n' word=${{COMP_WORDS[COMP_CWORD]}} found
  [ "$word" = = ] && word=
  COMPREPLY=()
  if found=$({name}_candidates "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"); then
    COMPREPLY=($(compgen -W "$found" -- "$word"))
  fi
}}
complete -o bashdefault -o default -F {name} {program}""",
    "zsh": """#compdef {program}
{candidates}
{name}_complete() {{
  local found
  if [[ $PREFIX == --*=* ]]; then
    found=$({name}_candidates "${{(@)words[2,CURRENT-1]}}" "${{PREFIX%%=*}}") && compset -P '*='
  else
    found=$({name}_candidates "${{(@)words[2,CURRENT-1]}}")
  fi && compadd -- ${{(f)found}} || _files
}}
if [[ $funcstack[1] == _{program} ]]; then {name}_complete; else compdef {name}_complete {program}; fi""",
}
