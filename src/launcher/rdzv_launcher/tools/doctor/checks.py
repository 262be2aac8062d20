"""What a check has found: a line for people, a record for scripts; of this machine the same as of a service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from rdzv_launcher.console import warnings_collected
from rdzv_plugins.errors import RdzvError, is_signal
from rdzv_plugins.interfaces import ServiceCheck

Finding: TypeAlias = ServiceCheck


def line(finding: Finding) -> str:
    """The whole finding in one line."""
    ends = not finding.remedy or finding.text.endswith((".", "?", "!"))
    text = finding.text if ends else f"{finding.text}."
    return f"{finding.verdict:<8} {finding.name}: {text} {finding.remedy}".rstrip()


def judged(name: str, fine: str, problem: str | bool, remedy: str) -> Finding:
    """A warning about ``problem``; if that is empty or False, what is ``fine``."""
    return Finding(name, str(problem), "warning", remedy) if problem else Finding(name, fine)


Check: TypeAlias = Callable[[], Iterable[Finding]]


def run_check(name: str, check: Check) -> Iterator[Finding]:
    """What ``check`` finds. An error in the check is a finding, too, and does not prevent other checks.

    So is anything logged as a warning meanwhile.
    """
    with warnings_collected() as warned:
        found: list[Finding] = []
        try:
            found.extend(check())
        except RdzvError as error:
            found.append(Finding(name, str(error), "wrong", error.remedy))
        except Exception as error:
            if is_signal(error):
                raise
            why = f"this check failed: {type(error).__name__}: {error}"
            found.append(Finding(name, why, "skipped"))
    yield from (Finding(name, text, "warning") for text in warned)
    yield from found
