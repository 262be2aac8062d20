"""What a check has found: a line for people, a record for scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rdzv_launcher.console import warnings_collected
from rdzv_plugins.errors import RdzvError, is_signal

Verdict = Literal["ok", "warning", "wrong", "skipped"]


@dataclass(frozen=True)
class Finding:
    """One finding. ``skipped``: nothing can be said about it here, and the text says why."""

    verdict: Verdict
    name: str
    """What was looked at, in a word or two."""
    text: str
    remedy: str = ""
    """What to do about it, in a sentence."""

    @property
    def line(self) -> str:
        """The whole finding in one line."""
        text = self.text if not self.remedy or self.text.endswith((".", "?", "!")) else f"{self.text}."
        return f"{self.verdict:<8} {self.name}: {text} {self.remedy}".rstrip()


def judged(name: str, fine: str, problem: str | bool, remedy: str) -> Finding:
    """A warning about ``problem``; if that is empty or False, what is ``fine``."""
    return Finding("warning", name, str(problem), remedy) if problem else Finding("ok", name, fine)


Check: TypeAlias = Callable[[], Iterable[Finding]]


def findings_of(name: str, check: Check) -> Iterator[Finding]:
    """What ``check`` finds. An error in the check is a finding, too, and does not prevent other checks.

    So is anything logged as a warning meanwhile.
    """
    with warnings_collected() as warned:
        found: list[Finding] = []
        try:
            found.extend(check())
        except RdzvError as error:
            found.append(Finding("wrong", name, str(error), error.remedy))
        except Exception as error:
            if is_signal(error):
                raise
            why = f"it cannot be looked at here: {type(error).__name__}: {error}"
            found.append(Finding("skipped", name, why))
    yield from (Finding("warning", name, text) for text in warned)
    yield from found
