"""Slurm's host list expressions: ``rack[1-2]node[001-003,7],login`` stands for eight nodes and one.

Expands them as ``scontrol show hostnames`` does, without starting that: it may not be there in a container. Source:
https://slurm.schedmd.com/scontrol.html, *show hostnames*; the form: https://slurm.schedmd.com/slurm.conf.html,
*NodeName*.
"""

from __future__ import annotations

import itertools
import re

_MOST = 1_000_000
_PART = re.compile(r"(?P<text>[\w.-]+)|\[(?P<ranges>[^\[\]]*)\]")
_RANGE = r"([0-9]+)(?:-([0-9]+))?"


def expand(text: str) -> list[str]:
    """The names in ``text``, in order. Raises ``ValueError``, which says what is wrong."""
    hosts: list[str] = []
    for item in _split(text):
        hosts += _expand_item(item)
        if len(hosts) > _MOST:
            raise ValueError(f"these are more than {_MOST} hosts")
    return hosts


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    return re.split(r",(?![^\[]*\])", text)


def _expand_item(item: str) -> list[str]:
    parts: list[list[str]] = []
    at, count = 0, 1
    while at < len(item):
        found = _PART.match(item, at)
        if not found:
            raise ValueError(f"{item[at:][:40]!r} is no part of a host list")
        parts.append([found["text"]] if found["text"] else _numbers(found["ranges"]))
        count *= len(parts[-1])
        if count > _MOST:
            raise ValueError(f"{item[:40]!r} stands for more than {_MOST} hosts")
        at = found.end()
    if not parts:
        raise ValueError("a name is empty")
    return ["".join(each) for each in itertools.product(*parts)]


def _numbers(ranges: str) -> list[str]:
    numbers: list[str] = []
    for each in ranges.split(","):
        found = re.fullmatch(_RANGE, each)
        if not found:
            raise ValueError(f"{each[:40]!r} is no range of numbers")
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first):
            raise ValueError(f"the range {each[:40]} ends before it begins")
        if int(last) - int(first) > _MOST:
            raise ValueError(f"the range {each[:40]} stands for more than {_MOST} hosts")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers
