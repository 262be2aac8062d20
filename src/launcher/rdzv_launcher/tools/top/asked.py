"""What a node of a watched job is asked when somebody presses a key: gives a text, or says why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rdzv_launcher.run.stacks.reports import read, report_text
from rdzv_launcher.tools.asking import ask_job
from rdzv_launcher.tools.stacks.command import HERE
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.plain_text import printable, printable_lines
from rdzv_plugins.questions import LOG, STACKS, NodeAnswer

_WITHIN_S = 15.0
_LONGEST = 4000
_FILES = "`rdzv logs DIR` on its machine finds the files of a rank."


def stacks_text(request: Request, node: Mapping[str, Any]) -> str:
    """Where the workers of ``node`` are; may take some seconds."""
    try:
        answers = _ask(request, node, STACKS, {"within": _WITHIN_S - 1}, HERE)
    except RdzvError as error:
        return printable_lines(str(error))
    workers, silent = read(answers)
    return report_text(workers, silent, threads=False)


def log_text(request: Request, node: Mapping[str, Any], rank: int) -> str:
    """The last lines of a worker of ``node``, by its global rank; may take some seconds."""
    try:
        [answer] = _ask(request, node, LOG, {"rank": rank}, _FILES)
    except RdzvError as error:
        return printable_lines(str(error))
    if answer.problem:
        return f"{answer.host} (pid {answer.pid}): {answer.problem}"
    try:
        return "\n".join(log_lines(answer.answer))
    except (TypeError, KeyError, AttributeError, RecursionError):
        return f"{answer.host} (pid {answer.pid}) has answered with something that cannot be read"


def _ask(
    request: Request, node: Mapping[str, Any], kind: str, arguments: Mapping[str, Any], otherwise: str
) -> list[NodeAnswer]:
    of = [node["host"], node["pid"]]
    answers = ask_job(request, kind, {**arguments, "of": of}, _WITHIN_S, otherwise=otherwise)
    return [each for each in answers if [each.host, each.pid] == of][:1]


def log_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a node's answer to ``log``. Raises ``KeyError``, ``TypeError`` or ``AttributeError`` for others."""
    for each in answer["streams"]:
        name, path = printable(str(each["stream"])), printable(str(each["path"]))
        if each["problem"]:
            yield f"{name} {printable(str(each['problem']))}"
            continue
        where = f" ({path})" if path else ""
        yield f"{name}{where}:" if each["lines"] else f"{name}{where}: nothing yet"
        yield from (f"  {printable(str(line).expandtabs(4), _LONGEST)}" for line in each["lines"])
