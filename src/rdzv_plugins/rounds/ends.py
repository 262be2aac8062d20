"""Failures and outcomes as the JSON that nodes exchange, and the error of a node that hears of an end."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rdzv_plugins import errors
from rdzv_plugins.interfaces import Failure, Outcome, Request
from rdzv_plugins.plain_text import printable

_MOST_LINES = 100
"""The most lines to read of a worker's last words; fewer are written."""
_SENTENCE = 2000
"""The most characters of a sentence."""


def to_json(end: Outcome | Failure) -> str:
    """The JSON form of an end."""
    return json.dumps(asdict(end))


def parse_outcome(text: bytes | str) -> Outcome:
    """An ``Outcome`` from its JSON form. Raises ``ValueError`` for anything else."""
    try:
        data = json.loads(text)
        failure, end = data.get("failure"), data["end"]
        if end not in ("done", "failed", "lost"):
            raise TypeError(f"its end is {end!r}")
        code = data.get("exit_code", 0)
        if type(code) is not int or not 0 <= code <= 255:
            raise TypeError(f"its exit_code is {code!r}")
        why = printable(str(data.get("why", "")))[:_SENTENCE]
        return Outcome(end, printable(str(data["reason"])), _failure(failure) if failure else None, why, code)
    except (TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError(f"not an outcome: {error}") from None


def parse_failure(text: bytes | str) -> Failure:
    """A ``Failure`` from its JSON form. Raises ``ValueError`` for anything else."""
    try:
        return _failure(json.loads(text))
    except (TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError(f"not a failure: {error}") from None


def _failure(data: dict[str, Any]) -> Failure:
    """A failure from its JSON form. Raises ``TypeError`` or ``KeyError``."""
    numbers = {name: data[name] for name in ("node_rank", "global_rank", "local_rank", "pid", "exit_code")}
    for name, number in numbers.items():
        least, most = (-127, 255) if name == "exit_code" else (-1, 2**31 - 1)
        if type(number) is not int or not least <= number <= most:
            raise TypeError(f"its {name} is {number!r}")
    lines = data["stderr"]
    if not isinstance(lines, list):
        raise TypeError("its stderr is no list of lines")
    stderr = tuple(printable(str(line)) for line in lines[-_MOST_LINES:])
    cause = printable(str(data.get("cause", "")))[:_SENTENCE]
    hang = printable(str(data.get("hang", "")))[:_SENTENCE]
    return Failure(host=printable(str(data["host"])), stderr=stderr, cause=cause, hang=hang, **numbers)


def ended_error(outcome: Outcome, request: Request) -> errors.RendezvousFailed:
    """The error for a node that hears how the job ended elsewhere."""
    if outcome.failure is not None:
        failed = outcome.failure
        return errors.PeerFailed(
            f"run {request.run_id!r} failed on node {failed.node_rank} ({failed.host}): {outcome.reason}",
            failed,
            why=outcome.why,
            exit_code=outcome.exit_code,
        )
    if outcome.exit_code == errors.Preempted.exit_code:
        return errors.Preempted(f"run {request.run_id!r} was preempted: {outcome.reason or outcome.end}")
    if outcome.exit_code == errors.RendezvousTimeout.exit_code:
        return errors.RendezvousTimeout(f"run {request.run_id!r}{request.at_endpoint} has ended: {outcome.reason}")
    return errors.RendezvousClosed(
        f"run {request.run_id!r}{request.at_endpoint} has ended: {outcome.reason or outcome.end}",
        remedy="" if outcome.end == "lost" else "To start it again, use another --rdzv-id.",
    )
