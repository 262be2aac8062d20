"""The settings of ``rdzv bench rendezvous``."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace

from rdzv_launcher.bench.backends import REFERENCES, reference_names
from rdzv_launcher.bench.method.settings import setting
from rdzv_launcher.bench.processes.closed import closed_setting
from rdzv_launcher.bench.processes.hosts import KINDS, may_have_namespaces
from rdzv_plugins.errors import UsageError

THREADS, NATIVE = "threads", "native"
"""How nodes are simulated."""
_LEAST_NODES = 4


@dataclass(frozen=True)
class RendezvousSettings:
    """How many nodes meet, where they are, and how often."""

    nodes: tuple[int, ...] = setting(
        (4, 16, 64),
        quick=(4, 16),
        metavar="N,N",
        minimum=1,
        help=f"numbers of nodes, each at least {_LEAST_NODES}: one of them is lost (default {{default}})",
    )
    references: str = setting(
        ",".join(REFERENCES), metavar="A,B", help="torch's own to compare with, {default}, or none (default both)"
    )
    simulate: str = setting(
        "",
        metavar="HOW",
        choices=(THREADS, NATIVE),
        alone=THREADS,
        help="thousands of nodes: as threads of few processes (threads, also without a value), or as light as sockets "
        "allow, but for the first, which leads (native: at a native store, without proxies); without it each node is "
        "a process",
    )
    processes: int = setting(
        0,
        metavar="P",
        minimum=1,
        help="with --simulate: how many hold the nodes, beside those of nodes that may be lost (default: one for each "
        "core)",
    )
    delay_ms: float = setting(
        0.0,
        metavar="MS",
        minimum=0,
        maximum=1000,
        help="a relay holds up what goes between a node and the endpoint: a round trip takes so much longer (default "
        "{default})",
    )
    hosts: str = setting(
        "",
        metavar="HOW",
        choices=KINDS,
        help="each process is a network namespace (namespaces; needs root and ip), or on loopback; auto: namespaces "
        "where that is allowed (default: auto with --simulate, else loopback)",
    )
    server: str = setting(
        "agent",
        metavar="WHERE",
        choices=("agent", "process"),
        help="of %(native)s: part of the first node's process (agent, the "
        "default), or of another one (process), as with rdzv serve",
    )
    closed: tuple[str, ...] = closed_setting("%(native)s", "hosts on loopback, and ")
    etcd_data: str = setting(
        "",
        metavar="DIR",
        help="where etcd keeps its data while it is measured, which it writes to disk at each change (default: the "
        "system's directory for temporary files)",
    )
    ttl: float = setting(
        10.0,
        metavar="SECONDS",
        minimum=2,
        maximum=3600,
        help="of a session, where a backend has any (default {default})",
    )
    repeats: int = setting(
        3,
        quick=1,
        metavar="N",
        minimum=1,
        help="runs of each target, after one that does not count (default {default})",
    )
    limit_s: float = setting(
        60.0,
        metavar="SECONDS",
        minimum=1,
        maximum=3600,
        help="of one round; a target that needs longer is not asked for more nodes (default {default})",
    )
    quick: bool = setting(False, quick=True)

    def __post_init__(self) -> None:
        if min(self.nodes) < _LEAST_NODES:
            raise UsageError(
                f"--nodes={min(self.nodes)}: at least {_LEAST_NODES} nodes are needed, one of which is lost",
                remedy=f"Give --nodes={_LEAST_NODES} or more.",
            )
        reference_names(self.references)

    def resolved(self) -> RendezvousSettings:
        """The same, with values for this machine in place of what was not given. Raises ``UsageError``."""
        if self.processes and not self.simulate:
            raise UsageError("--processes is for --simulate: without it each node is a process")
        data = os.path.abspath(self.etcd_data or tempfile.gettempdir())
        if not (os.path.isdir(data) and os.access(data, os.W_OK)):
            raise UsageError(f"--etcd-data={self.etcd_data}: not a directory that can be written to")
        hosts = self.hosts or ("auto" if self.simulate and not self.closed else "loopback")
        if self.closed and hosts != "loopback":
            raise UsageError("--closed is for hosts on loopback", remedy="Leave --hosts out.")
        if self.closed and (self.simulate == NATIVE or self.server == "process"):
            raise UsageError("--closed is for nodes and servers that are those of jobs", remedy="Leave --simulate out.")
        return replace(
            self,
            processes=self.processes or len(os.sched_getaffinity(0)),
            hosts="namespaces" if may_have_namespaces(hosts) else "loopback",
            etcd_data=data,
        )
