"""What the methods of a session, and of an author's client, return: the types of the contract, checked at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rdzv_plugins.coordination import Event, KeyValue


def wrong_answer(method: str, answer: Any, *, guarded: bool = True) -> str:
    """What is wrong with an answer to ``method`` of a session, or of the kit's client; empty if nothing is.

    ``guarded``: the request had a guard, so that the service may have refused it.
    """
    is_right, wanted = _ANSWERS.get(method, _ANYTHING)
    if not is_right(answer):
        return f"returned {shown(answer)}, which is not {wanted}"
    refused = not guarded and method in ("put", "delete") and (answer is None or answer is False)
    return f"returned {shown(answer)}: a guard has changed, but there was none" if refused else ""


def shown(value: object) -> str:
    """A value for a message, with its type, cut where it is long."""
    text = repr(value)
    kind = "" if value is None else f" ({type(value).__name__})"
    return f"{text if len(text) <= _SHOWN else f'{text[:_SHOWN]}...'}{kind}"


def are_events(events: Any) -> bool:
    """Whether a watch may be told this."""
    return _are(events, lambda each: isinstance(each, Event) and _is_key(each, may_be_gone=True))


def _is_number(value: Any) -> bool:
    """Whether it is a whole number, such as a revision or a rank."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_key(value: Any, *, may_be_gone: bool = False) -> bool:
    held = isinstance(value.value, bytes) or (may_be_gone and value.value is None)
    return held and isinstance(value.key, str) and _is_number(value.revision)


def _is_key_value(value: Any) -> bool:
    return isinstance(value, KeyValue) and _is_key(value)


def _are(values: Any, is_right: Callable[[Any], bool]) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str | bytes) and all(map(is_right, values))


def _pair(answer: Any, first: Callable[[Any], bool], second: Callable[[Any], bool]) -> bool:
    return isinstance(answer, tuple) and len(answer) == 2 and first(answer[0]) and second(answer[1])


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


_SHOWN = 200
_ANYTHING: tuple[Callable[[Any], bool], str] = (lambda _: True, "")
_ANSWERS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "open": (
        lambda answer: isinstance(answer, int | float) and 0 < answer < float("inf"),
        "the time to live that was granted, in seconds",
    ),
    "create": (lambda answer: _pair(answer, _is_bool, _is_key_value), "(whether it was done, the KeyValue)"),
    "put": (lambda answer: answer is None or _is_number(answer), "a revision or None"),
    "delete": (_is_bool, "True or False"),
    "list": (
        lambda answer: _pair(answer, lambda held: _are(held, _is_key_value), _is_number),
        "(a sequence of KeyValue, a revision)",
    ),
    "changes": (lambda answer: _pair(answer, are_events, _is_number), "(a sequence of Event, a revision)"),
    "watch": (lambda answer: callable(getattr(answer, "cancel", None)), "a Watch, which has cancel()"),
    "end_session": (_is_bool, "True or False"),
}
