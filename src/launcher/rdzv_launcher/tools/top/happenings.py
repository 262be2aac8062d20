"""What a change of a run's keys means to people, in a sentence. No I/O."""

from __future__ import annotations

from rdzv_launcher.run.workers.failures import describe
from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.elastic import keys
from rdzv_plugins.plain_text import printable
from rdzv_plugins.rounds.ends import parse_failure, parse_outcome


def happening(event: Event, before: KeyValue | None) -> str:
    """The sentence; empty for a change that is of no interest, or cannot be read."""
    try:
        return printable(_sentence(event.key, event.value, None if before is None else before.value))
    except ValueError:  # from another version, or from a stranger
        return ""


def last_end(failures: list[KeyValue]) -> str:
    """The newest failure that the nodes have recorded; empty if there was none."""
    rounds = {int(number): kv for kv in failures if keys.is_round(number := kv.key.removeprefix(keys.FAILURES))}
    try:
        return f"round {max(rounds)}: {describe(parse_failure(rounds[max(rounds)].value))}" if rounds else ""
    except ValueError:
        return ""


def _sentence(key: str, value: bytes | None, before: bytes | None) -> str:
    if key.startswith(keys.MEMBERS):
        if value is None:
            gone = keys.decode(keys.Member, before or b"")
            return f"{gone.name} has left: {gone.reason or gone.leaving}" if gone.leaving else f"{gone.name} is gone"
        member = keys.decode(keys.Member, value)
        if before is None:
            return f"{member.name} has come"
        if member.leaving and not keys.decode(keys.Member, before).leaving:
            return f"{member.name} leaves: {member.reason}"
        return ""
    if value is None:
        return "nobody leads" if key == keys.LEADER else ""
    if key == keys.ROUND:
        found = keys.decode(keys.Round, value)
        nodes = f"{found.world} node{'s' if found.world != 1 else ''}"
        return f"round {found.number} is {found.state}: {found.reason or nodes}" if found.state != "none" else ""
    if key == keys.NOTICE:
        return keys.decode(keys.NodeNotice, value).text
    if key == keys.END:
        end = parse_outcome(value)
        return f"the job has ended: {end.reason or end.end}"
    if key.startswith(keys.FAILURES):
        return describe(parse_failure(value))
    if key.startswith(keys.RESTARTS):
        return f"round {key.removeprefix(keys.RESTARTS)}: the workers are restarted: {value.decode(errors='replace')}"
    return ""
