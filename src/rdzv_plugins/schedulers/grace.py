"""How long a scheduler waits between its signal and SIGKILL, as far as it tells a process.

Kubernetes does not tell a pod: what counts is ``terminationGracePeriodSeconds``, and a manifest that sets
TERMINATION_GRACE_PERIOD_SECONDS to the same number passes it on. Slurm ends a job by SIGTERM and, after KillWait,
SIGKILL: that is in slurm.conf (https://slurm.schedmd.com/slurm.conf.html), which most nodes have as a file. slurmctld
is not asked: thousands of tasks would do so at once. The GraceTime of a partition and the time of ``--signal`` are not
to be found anywhere. When the job's time is up is in a variable, but not with Slurm 22.05 (SLURM_JOB_END_TIME,
https://slurm.schedmd.com/sbatch.html).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rdzv_plugins.schedulers.facts import Fact

GRACE = "TERMINATION_GRACE_PERIOD_SECONDS"
_END = "SLURM_JOB_END_TIME"
_MOST_DIGITS = 12
_SLURM_CONF = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
"""Where it is without SLURM_CONF: in Debian's and other packages, and where slurmd keeps one that it has no file of."""
_KILL_WAIT_S = 30
"""Slurm's default."""


def told_grace(environ: Mapping[str, str], *, by_sigterm: bool = True) -> Fact[int] | None:
    """The grace in seconds; None if nobody tells or it is not a number.

    ``by_sigterm``: SIGTERM is what it begins with.
    """
    return _number(environ, GRACE) or (_kill_wait(environ) if by_sigterm and "SLURM_STEP_ID" in environ else None)


def time_until_end(environ: Mapping[str, str], now: float) -> Fact[float] | None:
    """Seconds from ``now`` (Unix time) until the job's time is up; None if nobody tells, or it has passed."""
    end = _number(environ, _END)
    return Fact(end.value - now, end.source) if end is not None and end.value > now else None


def _kill_wait(environ: Mapping[str, str]) -> Fact[int] | None:
    """KillWait of this node's slurm.conf."""
    for path in (environ["SLURM_CONF"],) if environ.get("SLURM_CONF") else _SLURM_CONF:
        try:
            with open(path, errors="replace") as lines:
                text = lines.read()
        except OSError:
            continue
        found = re.search(rf"^\s*KillWait\s*=\s*([0-9]{{1,{_MOST_DIGITS}}})\b", text, re.MULTILINE | re.IGNORECASE)
        return Fact(int(found[1]) if found else _KILL_WAIT_S, f"KillWait in {path}")
    return None


def _number(environ: Mapping[str, str], name: str) -> Fact[int] | None:
    value = environ.get(name, "")
    good = value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS
    return Fact(int(value), name) if good else None
