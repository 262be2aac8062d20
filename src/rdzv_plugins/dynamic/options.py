"""Options of every backend that runs on torch's dynamic rendezvous, and its keys; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from rdzv_plugins.options import WorkerStoreOptions, option


@dataclass(frozen=True)
class DynamicSettings(WorkerStoreOptions):
    """torch's own keys with torch's own defaults, plus ``timeout`` and ``linger``."""

    timeout: float | None = option(
        None, help="The same as join_timeout, by the name that static uses.", unit="s", minimum=1
    )
    join_timeout: float | None = option(
        None, help="Time within which a round has to complete; 600 when unset.", unit="s", minimum=1
    )
    # with less than a second, nodes that poll once a second never meet: the first goes on alone, again and again
    last_call_timeout: float = option(
        30, help="How long to wait for more nodes once the minimum has joined.", unit="s", minimum=1
    )
    close_timeout: float = option(30, help="Time within which closing has to succeed.", unit="s", minimum=1)
    heartbeat_timeout: float = option(5, help="Time within which a keep-alive has to succeed.", unit="s", minimum=0.1)
    keep_alive_interval: float = option(5, help="Time between keep-alives.", unit="s", minimum=0.1)
    keep_alive_max_attempt: int = option(3, help="Missed keep-alives after which a node counts as dead.", minimum=1)
    cas_backoff_max_seconds: float = option(
        0, help="After a write that another node forestalled, wait for a random time up to this.", unit="s", minimum=0
    )
    read_timeout: float = option(60, help="Limit of one read of the control store.", unit="s", minimum=1)
    linger: float = option(
        5,
        help="Once nobody is working, how long a node that serves others waits for them to leave.",
        unit="s",
        minimum=0,
    )

    @property
    def join_seconds(self) -> float:
        """The join time-out that applies, in seconds."""
        return self.join_timeout or self.timeout or 600.0


SETTINGS = "settings"
"""The key, under the run's prefix, of the first node's settings; the others compare theirs with them."""


def run_prefix(run_id: str) -> str:
    """The prefix of all our keys."""
    return f"rdzv_plugins.{run_id}"
