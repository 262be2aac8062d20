"""What a scheduler says about a process that it has started, each value with the variable that it comes from."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")

Hosts = Callable[[int], "Fact[tuple[str, ...]] | None"]
"""Returns the hosts of node ranks 0, 1 and so on, at most that many: all, or only the first if no more are known.

Returns None if not even that is known. Called only when an endpoint is needed. May raise ``UsageError``.
"""

FIRST_PORT, PORTS = 20000, 10000
"""Derived ports are 20000 to 29999: below the range from which Linux takes ports for outgoing connections."""


class Fact(Struct, Generic[T], frozen=True):
    """One value that a scheduler has set, and where it was found."""

    value: T
    source: str
    """The variable or other source that it was read from, as named in messages."""

    def __str__(self) -> str:
        return f"{self.source}={self.value}"


class Facts(Struct, frozen=True):
    """Everything that one scheduler says; None where it says nothing."""

    launcher: str
    """The command that has started this process, for example ``srun``."""
    nodes: Fact[int] | None = None
    """On how many nodes this command was started."""
    node_rank: Fact[int] | None = None
    hosts: Hosts = lambda count: None
    port: Fact[int] | None = None
    run_id: Fact[str] | None = None
    run_id_lasts: bool = False
    """No later job will have this run id, so it may be used where the keys of old jobs are found."""
    workers: Fact[int] | None = None
    """The number of workers of this node."""
    replaced: bool = False
    """A lost node comes back under the same name, so a job with only as many nodes as it needs can go on without it."""
    domain: Fact[str] | None = None
    """Its place in the network, by a name that it shares with nodes near it."""
    idle: str = ""
    """Why this process is not the agent of its node, in words; empty if it is."""


def derived_port(number: int) -> int:
    """The port of a job with that number. Consecutive jobs, which may share a node, get different ones."""
    return FIRST_PORT + number % PORTS


def port_of_name(name: str) -> Fact[int]:
    """The port of a job that has no number, derived from its run id."""
    return Fact(derived_port(zlib.crc32(name.encode())), "the run id")
