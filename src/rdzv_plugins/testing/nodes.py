"""Nodes of a job, each a process of its own, told what to do step by step.

A ``NodesJob`` hands out ``Node`` objects. Their processes are forked from one that has imported torch already, so a
node costs milliseconds. Calls of a node's methods wait for the answer, at most ``PATIENCE`` seconds; ``join`` and
``..._later`` return a ``Pending`` at once::

    with NodesJob(harness, tmp_path, "2:3", conf={"ttl": "2"}) as job:
        first, second = job.start(2)
        first.store("set", "key", "value")
        assert second.store("get", "key") == b"value"
        second.kill()
        first.await_change()
        joining = first.join()
        ...
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from rdzv_plugins.interfaces import Capability, RendezvousHandler, Request
from rdzv_plugins.testing.commands import LANES, Commands, NodeJoined, obey
from rdzv_plugins.testing.forked import Forked
from rdzv_plugins.testing.harness import Harness, entry
from rdzv_plugins.testing.parts import PATIENCE, stop, wait_until
from rdzv_plugins.testing.suite import Test, Theme, gap_if

T = TypeVar("T")

_LOG_TAIL = 6000
"""How many characters of each node's output a message has."""
_REST_S = 0.4


@dataclass(eq=False)
class NodeError(Exception):
    """An error that a node's handler has raised, in its own process."""

    node: str
    """The node whose handler has raised it."""
    command: str
    kinds: list[str]
    """The names of its class and all base classes, its own first."""
    text: str
    remedy: str
    exit_code: int | None
    """The exit code with which the launcher would end; None if the error is not ours."""

    def is_a(self, kind: type[BaseException] | str) -> bool:
        return (kind if isinstance(kind, str) else kind.__name__) in self.kinds

    def must_be(self, *kinds: type[BaseException] | str, saying: str = "") -> None:
        """Assert that it is of one of these classes, that this matches in its text, and that it has a remedy."""
        assert any(map(self.is_a, kinds)), f"not a {' or '.join(map(str, kinds))}: {self}"
        assert re.search(saying, self.text), f"{saying!r} is not said: {self}"
        assert self.remedy, f"no remedy: {self}"

    def __str__(self) -> str:
        return f"{self.command} of {self.node} raised {self.kinds[0]}: {self.text}\n{self.remedy}"


class Pending(Generic[T]):
    """The answer to a command, which may come later. Used by the thread that uses the node."""

    def __init__(self, node: NodeProcess, command: str) -> None:
        self.node, self.command = node, command
        self.answer: Future[T] = Future()

    def done(self) -> bool:
        """Whether the answer, or the error, is there. Never waits."""
        if not self.answer.done():
            self.node.receive(0)
        return self.answer.done()

    def failed(self) -> bool:
        return self.done() and self.answer.exception() is not None

    def result(self, timeout: float = PATIENCE) -> T:
        """The answer. Raises ``NodeError`` if the node's handler has raised, AssertionError after ``timeout`` s."""
        deadline = time.monotonic() + timeout
        while not self.answer.done():
            left = deadline - time.monotonic()
            more = left > 0 and self.node.receive(left)
            if not more and not self.answer.done():  # the last answer comes with the end of its process
                raise AssertionError(
                    f"{self.command} of {self.node} got no answer within {timeout - left:.1f} s: its process "
                    f"{self.node.state}\n{self.node.logs()}"
                )
        return self.answer.result()

    def error(self, timeout: float = PATIENCE) -> NodeError:
        """The error in which it ends. Raises AssertionError if it does not, or not within ``timeout`` seconds."""
        try:
            result = self.result(timeout)
        except NodeError as error:
            return error
        raise AssertionError(f"{self.command} of {self.node} raised no error: {result}\n{self.node.logs()}")


class NodeProcess(Forked):
    """One node's process. Used by one thread. It can be told what ``Commands`` and its handler can do."""

    def __init__(self, job: NodesJob, request: Request) -> None:
        self.request, self.name, self.logs = request, f"{len(job.nodes)}", job.logs
        self.frozen = False
        self.joining: Pending[NodeJoined]
        """Its last ``join``, if there was one."""
        self._pending: dict[int, Pending[Any]] = {}
        self._count = 0
        super().__init__(job.directory / f"{self.name}.log", job.harness.environment, obey, request)

    def __str__(self) -> str:
        rank = self.request.node_rank
        return f"node {self.name} (pid {self.pid}{'' if rank is None else f', node rank {rank}'})"

    # its commands

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of ``Commands`` or of the handler: it has the process do this, and returns the answer.

        With ``_later`` at the end of its name it returns a ``Pending`` at once: ``node.leave_later("done")``.
        """
        command = name.removesuffix("_later")
        if not (hasattr(Commands, command) or hasattr(RendezvousHandler, command)):
            raise AttributeError(name)

        def tell(*args: Any, **kwargs: Any) -> Any:
            pending = self.later(LANES.get(command, "agent"), command, *args, **kwargs)
            return pending if name != command else pending.result()

        return tell

    def join(self) -> Pending[NodeJoined]:
        self.joining = self.later("agent", "join")
        return self.joining

    @property
    def rank(self) -> int:
        """Its rank in the round that it has joined."""
        return self.joining.result().rank

    def renew(self, **changes: Any) -> None:
        """Make its process that of another agent, after ``leave``, with these fields of the request."""
        self.request = replace(self.request, **changes)
        self.later("agent", "renew", **changes).result()

    # its process

    @property
    def state(self) -> str:
        """``runs``, ``stands still`` or ``has ended with code N`` (negative for a signal)."""
        if self.code is None:
            return "stands still" if self.frozen else "runs"
        return f"has ended with code {self.code}"

    def exit(self) -> int:
        """Let the process end like any program; returns its exit code."""
        self.later("agent", "exit").result()
        code = self.wait(PATIENCE)
        assert code is not None, f"{self} did not end within {PATIENCE:g} s\n{self.logs()}"
        return code

    def freeze(self) -> None:
        """Send SIGSTOP; returns when each thread has stopped, which may be later than the signal."""
        self.frozen = True
        stop(self.pid)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.frozen = False

    def later(self, lane: str, name: str, *args: Any, **kwargs: Any) -> Pending[Any]:
        """Have its process do this, without waiting for its end."""
        self._count += 1
        pending = self._pending[self._count] = Pending[Any](self, name)
        with contextlib.suppress(OSError):  # its process has ended, which the answer will say
            self.connection.send((self._count, lane, name, args, kwargs))
        return pending

    def receive(self, timeout: float) -> bool:
        """Settle an answer that has come, waiting up to ``timeout`` s for it. False if none will come."""
        try:
            while not self.connection.closed and self.connection.poll(max(0.0, timeout)):
                number, error, value = self.connection.recv()
                pending = self._pending.pop(number)
                if error is None:
                    pending.answer.set_result(value)
                else:
                    pending.answer.set_exception(NodeError(str(self), pending.command, *error))
                timeout = 0.0
        except (EOFError, OSError):
            return False
        return not self.connection.closed


class NodesJob:
    """Nodes of one run of the backend under test. A context manager: at its end all their processes are gone.

    ``directory`` is for their output and the endpoint. ``fields`` are those of every node's ``Request``; ``conf`` is
    added to the harness's. The run has an id of its own, and an endpoint of its own if none is given.
    """

    def __init__(self, harness: Harness, directory: Path, nnodes: str = "2", **fields: Any) -> None:
        low, _, high = nnodes.partition(":")
        self.harness = harness
        self.directory = Path(tempfile.mkdtemp(prefix="job-", dir=directory))
        self.nodes: list[NodeProcess] = []
        """All of them, including those that have ended."""
        self.run_id = f"run-{uuid.uuid4().hex[:8]}"
        if "endpoint" not in fields:
            empty = self.directory / "endpoint"
            empty.mkdir()
            fields["endpoint"] = harness.endpoint(empty)
        self.endpoint: str = fields["endpoint"]
        sizes = {"min_nodes": int(low), "max_nodes": int(high or low)}
        self._fields: dict[str, Any] = {"run_id": self.run_id, **sizes, **fields}

    def __enter__(self) -> NodesJob:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, AssertionError) and "--- node " not in str(error):
            error.args = (f"{error}\n{self.logs()}",)
        elif error is not None:
            print(self.logs())  # pytest shows it with the failure
        with contextlib.ExitStack() as ending:  # all of them, even if the end of one fails
            for node in reversed(self.nodes):
                ending.callback(node.close)

    def node(self, **changes: Any) -> NodeProcess:
        """Start one more node; ``changes`` replace those of the job's request.

        If node ranks have to be given, each node gets the next one.
        """
        rank = {"node_rank": len(self.nodes)} if self.ranks_have_to_be_given else {}
        node = NodeProcess(self, self.harness.request(**{**self._fields, **rank, **changes}))
        self.nodes.append(node)
        return node

    def start(self, count: int) -> list[NodeProcess]:
        """Start ``count`` nodes in a round of their own, some perhaps after its last call; returns them by rank."""
        nodes = [self.node() for _ in range(count)]
        regroup(nodes)
        return sorted(nodes, key=lambda node: node.rank)

    @property
    def ranks_have_to_be_given(self) -> bool:
        """True for a backend with a fixed number of nodes that uses the given ranks."""
        promised = entry(self.harness.backend).backend.capabilities
        return Capability.NODE_RANK in promised and Capability.ELASTIC not in promised

    def logs(self) -> str:
        return "\n".join(f"--- {node}:\n{node.log[-_LOG_TAIL:]}" for node in self.nodes)


def in_round(nodes: Sequence[NodeProcess]) -> None:
    """Have all of these join and form the whole of one round."""
    for node in nodes:
        node.join()
    one_world(nodes)


def one_world(nodes: Iterable[NodeProcess]) -> None:
    """Assert that these have joined, or come to join, one round that has no others."""
    places = sorted((node.joining.result() for node in nodes), key=lambda place: place.rank)
    ranks, worlds = [place.rank for place in places], [place.world for place in places]
    assert ranks == list(range(len(places))), f"the {len(places)} nodes of one round have the ranks {ranks}: {places}"
    assert set(worlds) == {len(places)}, f"the {len(places)} nodes of one round count {worlds} nodes: {places}"


def regroup(nodes: Sequence[NodeProcess], what: str = "") -> None:
    """Have all of these join, and get them ``together``."""
    for node in nodes:
        node.join()
    together(nodes, what)


def together(nodes: Sequence[NodeProcess], what: str = "") -> None:
    """Get all of these, which join, into one round that has no others: each joins again whenever its handler says so.

    Raises AssertionError if this does not succeed within ``PATIENCE`` seconds, saying that ``what`` should have;
    ``NodeError`` if a node cannot join.
    """
    places: list[NodeJoined] = []

    def joined() -> bool:
        for node in nodes:
            if node.joining.done() and node.num_nodes_waiting():
                node.join()
        if not all(node.joining.done() for node in nodes):
            return False
        places[:] = [node.joining.result() for node in nodes]
        return {place.world for place in places} == {len(nodes)}

    what = what or f"{len(nodes)} nodes are in one round and agree on its size"
    wait_until(joined, lambda: f"{what}: {places}")
    one_world(nodes)


class NodeTheme(Theme):
    """A theme whose tests have nodes."""

    def nodes(self, nnodes: str, **fields: Any) -> NodesJob:
        return NodesJob(self.harness, self.directory, nnodes, **fields)

    def elastic(self) -> bool:
        return self.declares(Capability.ELASTIC)

    def conf(self, **wanted: object) -> dict[str, str]:
        """``--rdzv-conf`` with those of the options that the backend has."""
        return {key: str(value) for key, value in wanted.items() if self.accepts(key)}

    def join_timeout(self, seconds: float) -> dict[str, str]:
        """``--rdzv-conf`` with the time within which a round has to be complete, if the backend has that option."""
        return self.conf(timeout=seconds, join_timeout=seconds)

    @staticmethod
    def others_than(host: NodeProcess | None, nodes: Sequence[NodeProcess]) -> list[NodeProcess]:
        """The nodes except the one that may not go."""
        return [node for node in nodes if node is not host]

    def victim_of(self, nodes: Sequence[NodeProcess]) -> tuple[NodeProcess, list[NodeProcess]]:
        """A node that may go, the last but the one that serves the endpoint, and the others."""
        victim = self.others_than(self.host_of(nodes), nodes)[-1]
        return victim, self.others_than(victim, nodes)

    def host_of(self, nodes: Sequence[NodeProcess]) -> NodeProcess | None:
        """The node with which the endpoint would go; None if there is no such node. The nodes have joined."""
        hosts = [node for node in nodes if self.serves(node)]
        assert len(hosts) <= 1, f"at most one node may serve the endpoint, not {', '.join(map(str, hosts))}"
        return hosts[0] if hosts else None

    def serves(self, node: NodeProcess) -> bool:
        """Whether the endpoint would go with this node: as its backend says, or as node rank 0 of a static one."""
        said = node.hosts()
        return node.request.node_rank == 0 and self.harness.service is None if said is None else said

    @staticmethod
    def says(node: NodeProcess, pattern: str) -> None:
        """Assert that the pattern comes to match in a node's output."""
        wait_until(lambda: re.search(pattern, node.log), f"{node} says {pattern!r}")

    def waiting_node(self, job: NodesJob) -> NodeProcess:
        """One more node, which waits in the rendezvous, so that the others can know of it."""
        node = job.node()
        node.join()
        wait_until(lambda: self.registered(node), f"{node} waits in the rendezvous")
        return node

    @staticmethod
    def registered(node: NodeProcess) -> bool:
        """Whether a node's join has got so far that the others can know of it, by what it has written and sent."""
        if "joining at" not in node.log:
            return False
        written: bool | None = node.has_written()
        if written is not None:
            return written
        sent = node.traffic()  # a handler of its own: it has come to rest
        time.sleep(_REST_S)
        return bool(node.traffic() == sent)


def needs(condition: Callable[[Any], object], why: str) -> Callable[[Test], Test]:
    """Mark a test of something that not every backend promises: for others it is a gap, for this reason."""
    return gap_if(lambda theme: "" if condition(theme) else why)


def told(nodes: Iterable[NodeProcess], what: str) -> None:
    """Wait until each of them is told to restart its workers, because of ``what``."""
    for node in nodes:
        assert node.await_change(), f"{node} was not told that {what}"


def take_in(nodes: Sequence[NodeProcess], entering: Pending[NodeJoined]) -> None:
    """Get the nodes of a round, and the one that is entering it, into one round: those are told, and join again."""
    comes = entering.node
    told(nodes, f"{comes} is to enter the round")
    for node in nodes:
        node.join()
    together([*nodes, comes], f"{comes} is in one round with the others")
