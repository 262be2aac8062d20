"""What nodes tell and ask each other about a notice, as arguments of questions and as answers. JSON, to be checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from rdzv_plugins.notice_page import MOST_STEPS
from rdzv_plugins.plain_text import printable

Do = Literal["tell", "propose", "agree", "drop", "over"]
LONGEST_GRACE_S = 24 * 3600.0
_REASON = 500
_MOST = 2**31 - 1


class Word(Struct, frozen=True):
    """One question. Each carries the whole notice, so it does not matter which one a node hears first."""

    round: int
    """The asker's round: in another round the question changes nothing."""
    node: int
    """The rank of the node that leaves."""
    reason: str
    seconds: float
    """How long workers have to save, counted from now, as clocks of nodes need not agree."""
    do: Do = "tell"
    step: int = 0
    """The step that is proposed or agreed on."""
    go_on: bool = True
    """With ``over``: enough nodes are left without those that leave."""
    saved: bool = False
    """With ``over``: all workers that wanted to save have done so."""

    def pack(self) -> dict[str, Any]:
        """The arguments of the question."""
        return asdict(self)


class Report(Struct, frozen=True):
    """What a node answers when asked about a notice."""

    round: int
    at: int
    """The most steps that one of its workers has done; -1 if none has reported any."""
    agreed: int
    """The step on which it knows that all have agreed; 0: none."""
    waiting: int
    """The number of workers that want to save, and have not yet."""
    saved: int
    """The number of workers that have saved."""
    leaving: bool
    """Whether the node that answers is one that leaves."""
    accepts: bool
    """None of its workers has passed the proposed step."""

    def pack(self) -> dict[str, Any]:
        """The answer."""
        return asdict(self)


def word_of(arguments: Mapping[str, Any]) -> Word:
    """Read a word from a question's arguments. Raises ``ValueError``."""
    data = dict(arguments)
    numbers = {"round": _MOST, "node": _MOST, "step": MOST_STEPS - 1}
    _require(data, Word, numbers, 0)
    if data["do"] not in ("tell", "propose", "agree", "drop", "over"):
        raise ValueError("it asks for nothing that is known")
    if not 0 <= data["seconds"] <= LONGEST_GRACE_S:  # nan, too
        raise ValueError("its time is none")
    if data["do"] in ("propose", "agree") and data["step"] < 1:
        raise ValueError("its step is none")
    data["reason"] = printable(data["reason"])[:_REASON]
    return Word(**data)


def report_of(answer: Any) -> Report:
    """Read a report from a node's answer. Raises ``ValueError``."""
    data = dict(answer) if isinstance(answer, dict) else {}
    most = MOST_STEPS - 1
    _require(data, Report, {"round": _MOST, "at": most, "agreed": most, "waiting": _MOST, "saved": _MOST}, -1)
    return Report(**data)


def _require(data: dict[str, Any], cls: type, numbers: Mapping[str, int], least: int) -> None:
    """Require exactly the fields of ``cls``, with their declared types."""
    types = cls.__annotations__
    if data.keys() != types.keys():
        raise ValueError(f"not a {cls.__name__}")
    for name, value in data.items():
        good: bool
        if name in numbers:
            good = type(value) is int and least <= value <= numbers[name]
        elif types[name] == "bool":
            good = type(value) is bool
        elif types[name] == "float":
            good = type(value) in (int, float)
        else:
            good = type(value) is str
        if not good:
            raise ValueError(f"not a {cls.__name__}: its {name}")
