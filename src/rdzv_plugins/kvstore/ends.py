"""Failures and outcomes from their JSON form, in which nodes tell them to each other."""

from __future__ import annotations

import json
from dataclasses import asdict

from rdzv_plugins.interfaces import Failure, Outcome


def to_json(end: Outcome | Failure) -> str:
    """The JSON form."""
    return json.dumps(asdict(end))


def parse_outcome(text: bytes | str) -> Outcome:
    """An ``Outcome`` from its JSON form. Raises ``ValueError`` for anything else."""
    data = json.loads(text)
    try:
        failure = data.pop("failure", None)
        return Outcome(**data, failure=_failure(failure) if failure else None)
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"not an outcome: {error}") from None


def parse_failure(text: bytes | str) -> Failure:
    """A ``Failure`` from its JSON form. Raises ``ValueError`` for anything else."""
    try:
        return _failure(json.loads(text))
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a failure: {error}") from None


def _failure(data: dict[str, object]) -> Failure:
    return Failure(**{**data, "stderr": tuple(data["stderr"])})  # type: ignore[arg-type]
