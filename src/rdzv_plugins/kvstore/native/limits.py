"""What clients may ask of the native store server, and how many files a process may open."""

from __future__ import annotations

import dataclasses
import logging
import os
from dataclasses import dataclass
from typing import Any

from rdzv_plugins.options import option

logger = logging.getLogger(__name__)

_MOST = 2**31 - 1  # bytes, keys, connections
_MOST_STORED = 2**62
_MOST_SECONDS = 1e6
_SHARE = 4
"""One part in this many is used.

The rest is for the workers, which the machine is there for, and for data being sent.
"""
_LEAST_SHARE = 64 * 2**20


@dataclass(frozen=True)
class StoreLimits:
    """A client that exceeds a limit is closed, or its request refused, with the reason; the statistics count it."""

    key_bytes: int = option(8192, help="Length of a key, including its leading slash.", unit="bytes", minimum=1)
    value_bytes: int = option(8 * 2**20, help="Length of a value in a request.", unit="bytes", minimum=1)
    keys_per_request: int = option(131072, help="Keys of one request, and keys that one client waits for.", minimum=1)
    request_bytes: int = option(256 * 2**20, help="Length of one whole request.", unit="bytes", minimum=1024)
    output_bytes: int = option(256 * 2**20, help="Replies that one client has not read.", unit="bytes", minimum=1024)
    buffered_bytes: int = option(
        2**30, help="Half-sent requests and unread replies of all clients together.", unit="bytes", minimum=1024
    )
    stored_bytes: int = option(
        0,
        help="Keys and values of one keyspace, and of all runs together, including overhead; 0: a quarter of "
        "the memory that this process may use.",
        unit="bytes",
        minimum=0,
    )
    stored_keys: int = option(2**24, help="Keys of one keyspace, including those that are only waited for.", minimum=1)
    run_bytes: int = option(
        64 * 2**20, help="Keys and values of one run, including overhead.", unit="bytes", minimum=1024
    )
    run_keys: int = option(2**18, help="Keys of one run.", minimum=1)
    sessions: int = option(2**18, help="Sessions of all runs: nodes, and commands that look at a job.", minimum=1)
    run_sessions: int = option(2**16, help="Sessions of one run.", minimum=1)
    watches: int = option(1024, help="Watches of one session.", minimum=1)
    run_watches: int = option(2**18, help="Watches of all sessions of one run.", minimum=1)
    connections: int = option(0, help="Open connections; 0: as many as the limit of open files allows.", minimum=0)
    pending_connections: int = option(
        2**16,
        help="Connections that have not sent a valid first request, at most half of all; beyond that, the one "
        "that has been silent longest is closed.",
        minimum=1,
    )
    pending_per_address: int = option(
        2**14, help="Connections from one address that have not sent a valid first request.", minimum=1
    )
    handshake_bytes: int = option(
        64 * 2**10, help="What a new connection may send until its first request is valid.", unit="bytes", minimum=64
    )
    handshake_seconds: float = option(
        30.0, help="Time in which a new connection has to send a valid first request.", unit="s", minimum=0.01
    )
    stall_seconds: float = option(
        60.0, help="How long a half-sent request or an unread reply may make no progress.", unit="s", minimum=0.01
    )

    def __post_init__(self) -> None:
        for name, value in of_limits(self).items():
            most = _MOST_SECONDS if name.endswith("_seconds") else _MOST_STORED if name == "stored_bytes" else _MOST
            if not 0 <= value <= most or (value == 0 and name not in ("connections", "stored_bytes")):
                raise ValueError(f"{name}={value} is not a limit (at most {most:g})")

    @classmethod
    def among(cls, options: object) -> StoreLimits:
        """The limits among a backend's ``options``; the default for those it does not have."""
        return cls(**of_limits(options))

    @property
    def most_stored(self) -> int:
        """``stored_bytes``, or the share of memory that 0 stands for, in bytes."""
        return self.stored_bytes or max(_LEAST_SHARE, usable_memory() // _SHARE)


def of_limits(options: object) -> dict[str, Any]:
    """The values of those options that are limits, by name."""
    names = (field.name for field in dataclasses.fields(StoreLimits))
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def usable_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or its control group's if that is allowed fewer."""
    from rdzv_plugins.system.cgroups import memory_of_groups

    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit, _ in memory_of_groups())])


def raise_file_limit() -> None:
    """Let this process open as many files as the system allows: every client of a server takes one.

    The processes that it starts inherit that.
    """
    try:
        import resource
    except ImportError:  # not a Unix system
        return
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            logger.debug("open files: limit raised from %d to %d", soft, hard)
    except (OSError, ValueError) as error:  # some systems refuse their own hard limit, some sandboxes the question
        logger.debug("open files: the limit stays: %s", error)
