"""One job of the backend under test, started as its users do: by ``rdzv-run``, and by plain torchrun."""

from __future__ import annotations

import dataclasses
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path

from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.interfaces import Capability
from rdzv_plugins.kvstore.sockets.reach import dial
from rdzv_plugins.kvstore.tcpstore.wire import greet
from rdzv_plugins.testing.agents.agent import Agent, Agents, outputs
from rdzv_plugins.testing.agents.processes import wait_until
from rdzv_plugins.testing.harness import Harness
from rdzv_plugins.testing.installed import entry

WORKERS = Path(__file__).parent / "workers"
ANSWER_S = 10
"""Seconds to wait for an answer: what is no store of torch's usually hangs up or refuses sooner."""


class AgentsJob(Agents):
    """Nodes of one worker each, on this machine. For use by one thread; ``close`` it.

    A node's rank is given if the backend promises to heed it (``static`` cannot do without).
    """

    def __init__(self, harness: Harness, directory: Path) -> None:
        super().__init__(directory, {**harness.environment, "GLOO_SOCKET_IFNAME": "lo"})
        meeting = directory / "meeting"
        meeting.mkdir()
        self._harness = harness
        self._backend = entry(harness.backend).backend
        self.with_torch = harness.kind == "state"  # its agents use the rendezvous of torch's launcher
        self.endpoint = harness.endpoint(meeting)
        self.run_id = f"launch-{uuid.uuid4().hex[:8]}"
        self.stop = directory / "stop"
        """The file that makes plain workers end."""

    @property
    def ranks_count(self) -> bool:
        """Whether the backend heeds given ranks."""
        return Capability.NODE_RANK in self._backend.capabilities

    def takes(self, option: str) -> bool:
        """Whether the backend takes that key of --rdzv-conf."""
        options = self._backend.options
        return options is not None and option in {field.name for field in dataclasses.fields(options)}

    def node(
        self,
        rank: int,
        script: str = "plain_worker.py",
        *args: object,
        nnodes: object = 2,
        restarts: int = 0,
        conf: Mapping[str, str] | None = None,
        endpoint: str | None = None,
        give_rank: bool | None = None,
    ) -> Agent:
        """Start a node by rdzv-run.

        ``plain_worker.py`` is given its file; ``conf`` is added to the harness's.
        """
        flags = self._flags(self._harness.backend, nnodes, restarts, conf, endpoint)
        if self.ranks_count if give_rank is None else give_rank:
            flags.append(f"--node-rank={rank}")
        return self.launch("rdzv-run", [*flags, *self._command(script, args)])

    def torchrun(self, rank: int, script: str, *args: object) -> Agent:
        """Start a node of two by plain torchrun, on the backend under test."""
        flags = self._flags(f"rdzv-plugins.{self._harness.backend}", 2, 0, None, None)
        env = {"PET_NODE_RANK": str(rank)} if self.ranks_count else {}  # torchrun keeps --node-rank to itself
        return self.launch("torchrun", [*flags, *self._command(script, args)], **env)

    def torchs_own(self, backend: str, script: str, *args: object, conf: str = "") -> Agent:
        """Start a node of two by torchrun, on torch's own backend of that name, with the job's endpoint and id."""
        flags = [f"--rdzv-backend={backend}", f"--rdzv-endpoint={self.endpoint}", f"--rdzv-id={self.run_id}"]
        flags += ["--nnodes=2", "--nproc-per-node=1", *([f"--rdzv-conf={conf}"] if conf else [])]
        return self.launch("torchrun", [*flags, *self._command(script, args)])

    def _flags(
        self, backend: str, nnodes: object, restarts: int, conf: Mapping[str, str] | None, endpoint: str | None
    ) -> list[str]:
        flags = [f"--rdzv-backend={backend}", f"--rdzv-endpoint={self.endpoint if endpoint is None else endpoint}"]
        flags += [f"--rdzv-id={self.run_id}", f"--nnodes={nnodes}", "--nproc-per-node=1", f"--max-restarts={restarts}"]
        pairs = ",".join(f"{key}={value}" for key, value in {**self._harness.conf, **(conf or {})}.items())
        return [*flags, f"--rdzv-conf={pairs}"] if pairs else flags

    def _command(self, script: str, args: tuple[object, ...]) -> tuple[object, ...]:
        return (WORKERS / script, *((self.stop,) if script == "plain_worker.py" else ()), *args)

    def is_torchs_store(self) -> bool:
        """Whether a store of torch's, or one that speaks like it, answers at the endpoint, which is a TCP one.

        Waits until something accepts connections there.
        """
        one = parse_endpoint(self.endpoint.split(",")[0].rpartition("://")[2], None)

        def connected() -> socket.socket | None:
            try:
                return dial(one.host, one.port, ANSWER_S)
            except OSError:
                return None

        connection: socket.socket = wait_until(
            connected, 120, lambda: f"nobody listens at {self.endpoint}:\n{outputs(self.agents)}"
        )
        with connection:
            try:
                greet(connection)
            except OSError:  # silent, hangs up, or answers something else
                return False
        return True

    def finish(self, *agents: Agent, code: int = 0) -> None:
        """Stop the plain workers; check that all ``agents`` end with ``code`` and nothing of the job is left."""
        self.stop.touch()
        codes = [agent.wait() for agent in agents]
        assert codes == [code] * len(agents), f"exit codes {codes}, not all {code}:\n{outputs(agents)}"
        self.nothing_left()

    def nothing_left(self) -> None:
        """Check that no process of the job lives. Raises ``AssertionError`` listing those that do."""
        left = self.processes()
        assert not left, f"processes are left behind: {left}\n{outputs(self.agents)}"
