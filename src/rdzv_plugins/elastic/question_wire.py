"""Questions and answers as values of keys: JSON, with answers compressed and split into parts.

Anyone who reaches the service can write such a key, so everything that is read has limits: no question or answer costs
its reader more than some megabytes, whatever it contains. A service need not accept more than some kilobytes in one
value.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from rdzv_plugins.questions import Question

PART_BYTES = 48 * 2**10
MOST_PARTS = 64
MOST_BYTES = 32 * 2**20
"""The most bytes of an answer, unpacked."""
_QUESTION_BYTES = 16 * 2**10
_ID = re.compile(r"[0-9a-f]{32}")


class TooLarge(ValueError):
    """An answer is too large to be sent."""


def pack_question(kind: str, arguments: Mapping[str, Any]) -> bytes:
    """The value of a question's key."""
    return json.dumps({"kind": kind, "arguments": dict(arguments)}).encode()


def unpack_question(id_: str, value: bytes) -> Question:
    """Reverse ``pack_question``. Raises ``ValueError``."""
    if not _ID.fullmatch(id_) or len(value) > _QUESTION_BYTES:
        raise ValueError("not a question: its id, or its length")
    data = _parse(value)
    kind, arguments = data.get("kind"), data.get("arguments")
    if not isinstance(kind, str) or not isinstance(arguments, dict):
        raise ValueError("not a question")
    return Question(id_, kind, arguments)


def pack_answer(answer: Any) -> dict[str, bytes]:
    """The parts of an answer by name. Raises ``TooLarge``, and whatever ``json`` raises for what is not JSON."""
    plain = json.dumps({"answer": answer}).encode()
    packed = zlib.compress(plain)
    parts = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
    if len(parts) > MOST_PARTS or len(plain) > MOST_BYTES:
        raise TooLarge(f"it has {len(plain) / 2**20:.0f} MiB")
    return _named(parts)


def pack_problem(problem: str) -> dict[str, bytes]:
    """Like ``pack_answer``, for a node that has no answer."""
    return _named([zlib.compress(json.dumps({"problem": problem[:1000]}).encode())])


def is_part(name: str, value: bytes) -> bool:
    """Whether ``value`` can be a part of an answer under this name."""
    number, _, of = name.partition(".")
    if len(value) > PART_BYTES or not (number.isdecimal() and of.isdecimal()) or len(name) > 8:
        return False
    return int(number) < int(of) <= MOST_PARTS


def is_whole(parts: Mapping[str, bytes]) -> bool:
    """Whether all parts of an answer are there."""
    counts = {name.partition(".")[2] for name in parts}
    return len(counts) == 1 and len(parts) == int(counts.pop())


def unpack_answer(parts: Mapping[str, bytes]) -> tuple[Any, str]:
    """The answer from all its ``parts``, and the problem, which is empty if there is an answer.

    Raises ``ValueError``.
    """
    unpacking = zlib.decompressobj()
    packed = b"".join(value for _, value in sorted(parts.items(), key=lambda each: int(each[0].partition(".")[0])))
    try:
        plain = unpacking.decompress(packed, MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from None
    if not unpacking.eof:
        raise ValueError("it is too large, or not whole")
    data = _parse(plain)
    if "answer" not in data:
        return None, str(data.get("problem") or "it has no answer")
    return data["answer"], ""


def _named(parts: Sequence[bytes]) -> dict[str, bytes]:
    return {f"{number}.{len(parts)}": part for number, part in enumerate(parts)}


def _parse(value: bytes) -> dict[str, Any]:
    try:
        data = json.loads(value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")
    return data
