"""One node's process, and what it can be told to do."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from rdzv_plugins.interfaces import Failure, Request
from rdzv_plugins.testing.contract.parts import stop
from rdzv_plugins.testing.nodes import messages as node_messages
from rdzv_plugins.testing.nodes.answers import PATIENCE_S, Joined, Pending
from rdzv_plugins.testing.nodes.warm import warm

T = TypeVar("T")


class Node:
    """One node's process. Used by one thread. Its commands are those of ``commands.Commands``."""

    def __init__(
        self, request: Request, name: str, directory: Path, environment: Mapping[str, str], logs: Callable[[], str]
    ) -> None:
        """``environment`` is added to that of the tests; ``logs`` returns what messages of failed tests end with."""
        self.request, self.name, self.logs = request, name, logs
        self.output = directory / f"{name}.log"
        self.frozen = False
        self.place: Joined | None = None
        """Its place in the last round that it has joined."""
        self.joining: Pending[Joined] | None = None
        """The last ``join``."""
        self._pending: dict[int, Pending[Any]] = {}
        self._count = 0
        self._unread = b""
        self._connection, theirs = socket.socketpair()
        data: dict[str, Any] = {
            "directory": str(directory),
            "environment": {**os.environ, **environment},
            "path": sys.path,
            "request": {
                **{each.name: getattr(request, each.name) for each in fields(request) if each.compare},
                "conf": dict(request.conf),
                "given": sorted(request.given),
                "options": None,
            },
        }
        with theirs, self.output.open("ab") as output:
            fds = theirs.fileno(), output.fileno()
            self._process = warm(environment).start(data, [f"node {name}"], fds)
        self.pid = self._process.pid

    def __str__(self) -> str:
        rank = self.request.node_rank
        return f"node {self.name} (pid {self.pid}{'' if rank is None else f', node rank {rank}'})"

    # what torch's agent calls

    def create(self) -> None:
        """Make the handler, which ``join`` otherwise does. With some backends, blocks until the endpoint is reached."""
        self.later("create").result()

    def join(self) -> Pending[Joined]:
        """Begin ``next_rendezvous``, without waiting for its end."""
        self.joining = self.later("join", convert=self._joined)
        return self.joining

    def wait_joined(self, timeout: float = PATIENCE_S) -> Joined:
        """Join, and wait until the round is complete."""
        return self.join().result(timeout)

    def num_nodes_waiting(self) -> int:
        return cast(int, self.later("num_nodes_waiting").result())

    def await_change(self, timeout: float = PATIENCE_S) -> int:
        """Ask as an agent does until it has to restart its workers; returns what it is told, or 0 after ``timeout``.

        Raises ``NodeError`` if the handler says that the job has ended.
        """
        return self.await_change_later(timeout).result(timeout + PATIENCE_S)

    def await_change_later(self, timeout: float = PATIENCE_S) -> Pending[int]:
        """Begin ``await_change`` in the node's process, without waiting for its end."""
        return self.later("await_change", timeout)

    def is_closed(self) -> bool:
        return cast(bool, self.later("is_closed").result())

    def await_closed(self, timeout: float = PATIENCE_S) -> bool:
        """Ask until it is closed; False after ``timeout`` seconds."""
        return cast(bool, self.later("await_closed", timeout).result(timeout + PATIENCE_S))

    def set_closed(self) -> None:
        self.later("set_closed").result()

    def get_run_id(self) -> str:
        return cast(str, self.later("get_run_id").result())

    def must_rejoin(self) -> bool:
        return cast(bool, self.later("must_rejoin").result())

    def peer_lost(self) -> bool:
        return cast(bool, self.later("peer_lost").result())

    def note_done(self) -> None:
        self.later("note_done").result()

    def note_leaving(self, reason: str) -> None:
        self.later("note_leaving", reason).result()

    def note_failure(self, failure: Failure) -> None:
        self.later("note_failure", {**asdict(failure), "stderr": list(failure.stderr)}, lane="side").result()

    def first_failure(self) -> Failure | None:
        data: dict[str, Any] | None = self.later("first_failure").result()
        return Failure(**{**data, "stderr": tuple(data["stderr"])}) if data else None

    def leave(self, end: str = "done", reason: str = "", failure: Failure | None = None) -> None:
        """Tell the others and shut down, as the launcher does."""
        self.leave_later(end, reason, failure).result()

    def leave_later(self, end: str = "done", reason: str = "", failure: Failure | None = None) -> Pending[None]:
        """Begin ``leave`` without waiting for its end: a node that serves something may wait for the others."""
        return self.later("leave", end, reason, asdict(failure) if failure else None)

    def renew(self, **changes: Any) -> None:
        """Make its process that of another agent, after ``shutdown``, with these fields of the request."""
        self.request = replace(self.request, **changes)
        self.place = self.joining = None
        self.later("renew", changes).result()

    def shutdown(self) -> bool:
        return cast(bool, self.later("shutdown").result())

    # stores

    def store(self, operation: str, *args: Any) -> Any:
        """Call a method of ``RendezvousInfo.store`` by its name. Values come as bytes; time-outs are ``timedelta``."""
        return self.store_later(operation, *args).result()

    def store_later(self, operation: str, *args: Any) -> Pending[Any]:
        """Begin ``store`` without waiting for its end, for operations that wait."""
        return self.later("store", operation, *args)

    def worker(self, operation: str, *args: Any) -> Any:
        """Call a method of the workers' store by name, on a stock torch client as ``init_process_group`` makes one."""
        return self.worker_later(operation, *args).result()

    def worker_later(self, operation: str, *args: Any) -> Pending[Any]:
        """Begin ``worker`` without waiting for its end. A worker does not hinder its node's agent."""
        return self.later("worker", operation, *args, lane="worker")

    def worker_quit(self) -> None:
        """End the worker: the next operation is another one's."""
        self.later("worker_quit", lane="worker").result()

    # its process

    def hosts(self) -> bool | None:
        """Whether it serves the endpoint, according to its backend; None if it does not say."""
        return cast("bool | None", self.later("hosts", lane="side").result())

    def leads(self) -> bool:
        """Whether it decides for all nodes of a coordination backend."""
        return cast(bool, self.later("leads", lane="side").result())

    def overrides(self) -> list[str]:
        """The methods in which its handler has more to say than ``RendezvousHandler``."""
        return cast("list[str]", self.later("overrides").result())

    def requests(self) -> dict[str, int]:
        """How often each call of its session, or of its state backend, was made so far."""
        return cast("dict[str, int]", self.later("requests", lane="side").result())

    def has_written(self) -> bool | None:
        """Whether its session, or its state backend, has written something; None for a handler of its own."""
        return cast("bool | None", self.later("has_written", lane="side").result())

    def traffic(self) -> int:
        """Segments with data that it has sent on the TCP connections that are open now."""
        return cast(int, self.later("traffic", lane="side").result())

    def resources(self) -> dict[str, Any]:
        """``threads``: their number; ``descriptors``: how many of each kind; ``children``: pids."""
        return cast("dict[str, Any]", self.later("resources", lane="side").result())

    @property
    def log(self) -> str:
        """Everything that its process has written to stdout and stderr."""
        return self.output.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        """Whether its process has not ended."""
        return self._process.poll() is None

    @property
    def state(self) -> str:
        """``runs``, ``stands still`` or ``has ended with code N`` (negative for a signal)."""
        if self.alive:
            return "stands still" if self.frozen else "runs"
        return f"has ended with code {self._process.poll()}"

    def kill(self) -> None:
        """Kill the node as when its machine loses power; returns when it has ended."""
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
            self.wait_ended()

    def exit(self) -> int:
        """Let the process end like any program; returns its exit code."""
        self.later("exit").result()
        return self.wait_ended()

    def wait_ended(self, timeout: float = PATIENCE_S) -> int:
        """The exit code of its process (negative for a signal). Raises AssertionError after ``timeout`` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self} has not ended within {timeout:g} s\n{self.logs()}") from None

    def freeze(self) -> None:
        """Send SIGSTOP; returns when each thread has stopped, which may be later than the signal."""
        self.frozen = True
        stop(self.pid)

    def thaw(self) -> None:
        """Let the node's process continue, by SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
        self.frozen = False

    def close(self) -> None:
        """End its process at once, whatever it is doing."""
        try:
            self.kill()
        finally:
            self._connection.close()

    # the commands

    def later(
        self, command: str, *args: Any, lane: str = "agent", convert: Callable[[Any], T] = lambda answer: answer
    ) -> Pending[T]:
        """Tell the node to do something; see ``process`` for the lanes."""
        self._count += 1
        pending = self._pending[self._count] = Pending(self, command, convert)
        data = {"id": self._count, "do": command, "lane": lane, "args": node_messages.encode(args)}
        try:
            self._connection.sendall(json.dumps(data).encode() + b"\n")
        except OSError:  # its process has ended, which the answer will say
            pass
        return pending

    def receive(self, timeout: float) -> bool:
        """Settle the answers that have come, waiting up to ``timeout`` s for the first. False if none will come."""
        if self._connection.fileno() < 0:
            return False
        if not select.select([self._connection], [], [], max(0.0, timeout))[0]:
            return True
        try:
            data = self._connection.recv(1 << 20)
        except OSError:
            data = b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            self._pending.pop(answer["id"]).settle(answer)
        return bool(data)

    def _joined(self, data: dict[str, Any]) -> Joined:
        self.place = Joined(**data)
        return self.place
