"""What has to hold after a fault: by when the job is back at work, and which ends are documented ones.

This is the place to change when the product promises more. Times in seconds, of a machine with nothing else to do;
``Promises.slack`` is for others.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from soak.schedule import Burst, Fault

LEFT_BEHIND_S = 2.0
"""Nothing that a worker or an agent has started lives longer after its agent has ended."""
FIRST_WORD_S = 300.0
"""An agent has said something: what it takes to import torch, on a machine with much else to do, is not the point."""
GIVE_UP_S = 150.0
"""So long past its time a job is watched, to know when it does come back; then it is started again."""
END_S = 40.0
"""Within this time all agents have ended once their workers are done."""

_ROUND_S = 16.0
"""Workers that have failed end once they have saved, 6 s; nodes join, dial the store, exchange ranks, workers start."""
_TORCH_S = 5.0
"""Workers import torch."""
_ELECTION_S = 5.0
"""A cluster notices that its leader does not answer, and elects another."""
_STOPPED_WORKER_S = 30.0
"""torch's agent gives a worker so long to end by SIGTERM, which a stopped one does not."""
_NO_HOST = 68
_AGAIN_S = 30.0
"""A node that could not reach the store, or was lost again and again, is let in after pauses that grow."""


@dataclass(frozen=True)
class Promises:
    """Of the backend, as it runs here."""

    ttl: float
    reach_timeout: float
    outage: float
    """For so long the job goes on without the service; 0: it may end when that is away for longer than ``ttl``."""
    slack: float
    """Limits are this many times as long: a machine has other things to do."""
    torch: bool
    serving: str = ""
    """The node that serves the endpoint."""

    def limit(self, burst: Burst) -> float:
        """Within which the job is back once nothing is wrong any more, and all agents have said their first word."""
        kinds = {fault.kind for fault in burst.faults}
        seconds = _ROUND_S + max(burst.start_s.values(), default=0.0) + (_TORCH_S if self.torch else 0.0)
        if kinds - {"kill_worker", "leave", "arrive", "term_agent"}:
            # a node is not known to be lost before ttl has passed; who fails with it asks for as long, and a second
            seconds += 2 * self.ttl + 1
        if len(burst.faults) > 1 or kinds & {"stop_agent", "cut", "slow", "kill_agent", "blind"}:
            seconds += max(self.reach_timeout, self.ttl + 1)  # it was lost while others were to reach its store
        if kinds & {"blind", "kill_agent", "stop_agent", "cut"}:
            seconds += _AGAIN_S
        if kinds & {"kill_member", "stop_member"}:
            seconds += _ELECTION_S
        if any(fault.again for fault in burst.faults):  # the round before may have been under way then
            seconds += max(self.reach_timeout, self.ttl + 1)
        if "stop_worker" in kinds and len(burst.faults) > 1:
            seconds += _STOPPED_WORKER_S
        return seconds * self.slack

    def start_limit(self) -> float:
        """Within which the first round of a job works, once all agents have said their first word."""
        return (2 * _ROUND_S + self.ttl + (_TORCH_S if self.torch else 0.0)) * self.slack


@dataclass(frozen=True)
class DocumentedEnd:
    """Why an agent may end though nobody has told it to."""

    why: str
    of_job: bool = False
    """So may all others."""


def documented_end(promises: Promises, node: str, code: int, faults: Collection[Fault]) -> DocumentedEnd | None:
    """Why an agent may end with ``code`` after ``faults``; None if it may not.

    docs/how-to/elastic-jobs.md, "How it ends".
    """
    for fault in faults:
        if fault.target == promises.serving and fault.kind in ("kill_agent", "term_agent") and code in (_NO_HOST, 76):
            return DocumentedEnd("the node that serves the endpoint has gone", of_job=True)
        service = fault.target in ("server", promises.serving) and fault.length != "short"
        if service and not promises.outage and code == _NO_HOST:
            return DocumentedEnd("the service was away for longer than the time to live", of_job=True)
    return None


def codes_of(sent: Sequence[signal.Signals], *, spoke: bool) -> tuple[int, ...]:
    """Those with which an agent ends by signals; it handles SIGTERM once it has said its first word."""
    codes = [-signal.SIGKILL] if signal.SIGKILL in sent else []
    if signal.SIGTERM in sent:
        codes += [128 + signal.SIGTERM] if spoke else [128 + signal.SIGTERM, -signal.SIGTERM]
    return tuple(codes) or (0,)
