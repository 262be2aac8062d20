"""Agents of the backend ``parallel`` on hosts, one on each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack

from kits.etcd.etcd_kit import Member, etcd
from kits.hosts.hosts import Host, Lan
from kits.launcher.harness import AgentProcess, Cluster
from rdzv_plugins.testing.launched import outputs

PORT = 29500
TTL = 4
"""Seconds: short, so that a loss is noticed soon, and longer than two busy processors keep an agent silent."""
SOON = TTL + 60
"""Within which a loss is noticed: the time to live, one for a last question, and a margin for busy processors."""
LONG_TTL = 30
"""Where nobody is lost."""


class Fleet:
    """Hosts, and one job on them; its workers run until ``stop``."""

    def __init__(self, lan: Lan, cluster: Cluster, ends: ExitStack) -> None:
        self.lan, self.cluster, self._ends = lan, cluster, ends
        self._stop = cluster.directory / "stop"

    def node(
        self,
        host: Host,
        endpoint: str | Sequence[Host],
        nnodes: object,
        *,
        rank: int | None = None,
        ttl: float = LONG_TTL,
        outage: float | None = None,
        conf: str = "",
        script: str = "says.py",
        flags: Sequence[str] = (),
        **env: str,
    ) -> AgentProcess:
        """An agent on ``host``. The worker says.py has no torch, trains.py trains over gloo.

        ``endpoint``: or the hosts at which the job may meet. It waits ``outage`` seconds for a rendezvous that does not
        answer; unset: as long as a session lives.
        """
        if not isinstance(endpoint, str):
            endpoint = ",".join(f"{each.address}:{PORT}" for each in endpoint)
        args = (self._stop,) if script == "trains.py" else (self._stop, 0)
        conf += ",same_command=no"
        settings = (f"ttl={ttl}", f"outage_timeout={ttl if outage is None else outage}", conf)
        command: list[object] = ["rdzv-run", f"--nnodes={nnodes}", "--nproc-per-node=1", "--rdzv-backend=parallel"]
        command += [f"--rdzv-endpoint={endpoint}", f"--rdzv-conf={','.join(filter(None, settings))}"]
        command += [] if rank is None else [f"--node-rank={rank}"]
        command += [] if any(flag.startswith("--rdzv-id=") for flag in flags) else ["--rdzv-id=none"]
        return self.start(host, [*command, "--max-restarts=0", *flags, self.cluster.script(script), *args], **env)

    def start(self, host: Host, command: Sequence[object], **env: str) -> AgentProcess:
        """Any command of the environment under test."""
        return self.cluster.start(command, before=host.enter(self.cluster.directory), inside=host.pid, **env)

    def serve_etcd(self, host: Host) -> Member:
        """An etcd of one member on ``host``, until the end of the test."""
        (member,) = self._ends.enter_context(etcd(self.cluster.directory, hosts=[host])).members
        return member

    def stop(self) -> None:
        self._stop.touch()

    def finish(self, *agents: AgentProcess) -> None:
        """All end well, and nothing is left."""
        self.stop()
        codes = [agent.wait() for agent in agents]
        assert codes == [0] * len(agents), outputs(agents)
        self.check_gone()

    def check_gone(self) -> None:
        self.cluster.check_gone(but="rdzv serve")


def said(agent: AgentProcess, pattern: str) -> re.Match[str]:
    """What an agent that has ended said."""
    found = re.search(pattern, agent.text)
    assert found, f"no {pattern!r} in:\n{agent.text}"
    return found
