"""How long a scheduler waits between its signal and SIGKILL, as far as it tells a process that.

Kubernetes tells a pod nothing of it: what counts is ``terminationGracePeriodSeconds``, and a manifest that sets
TERMINATION_GRACE_PERIOD_SECONDS to the same number says so. Slurm tells when the job's time is up
(SLURM_JOB_END_TIME, https://slurm.schedmd.com/sbatch.html); KillWait, GraceTime of a partition and the time of
``--signal`` are in its configuration and in the job's options, and in no variable.
"""

from __future__ import annotations

from collections.abc import Mapping

from rdzv_plugins.schedulers.facts import Fact

GRACE = "TERMINATION_GRACE_PERIOD_SECONDS"
_END = "SLURM_JOB_END_TIME"
_MOST_DIGITS = 12


def told_grace(environ: Mapping[str, str]) -> Fact[int] | None:
    """The seconds; None where nobody tells, or what is no number."""
    return _number(environ, GRACE)


def time_until_end(environ: Mapping[str, str], now: float) -> Fact[float] | None:
    """The seconds from ``now`` (Unix time) until the job's time is up; None where nobody tells, or it has passed."""
    end = _number(environ, _END)
    return Fact(end.value - now, end.source) if end is not None and end.value > now else None


def _number(environ: Mapping[str, str], name: str) -> Fact[int] | None:
    value = environ.get(name, "")
    good = value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS
    return Fact(int(value), name) if good else None
