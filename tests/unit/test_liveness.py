"""Is a process gone? Only its host proves it: everything else that can happen to a port proves nothing."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kits.eventually import eventually
from kits.unit.membership_steps import node

from rdzv_plugins.coordination import KeyValue
from rdzv_plugins.elastic.current_round import NodeContext
from rdzv_plugins.elastic.election import Election
from rdzv_plugins.elastic.keys import Assignment, LeaderInfo, decode, encode
from rdzv_plugins.elastic.liveness_probe import BYE, WAITS, Peer, PeerMonitor, ProbePort, answer, hello, peer_of
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.interfaces import Request
from rdzv_plugins.runtime import SYSTEM
from rdzv_plugins.testing.parts import stop
from rdzv_plugins.testing.relay import Relay

HERE = "127.0.0.1"
PATIENCE_S = 60.0

LISTENS = """
import os, sys
from rdzv_plugins.elastic.liveness_probe import ProbePort
from rdzv_plugins.runtime import SYSTEM
listener = ProbePort(None, SYSTEM)
print(listener.listen(sys.argv[1], "127.0.0.1", "127.0.0.1"), flush=True)
sys.stdin.readline()
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print("forked", flush=True)
sys.stdin.read()
"""


def opened(node_id: str) -> ProbePort:
    port = ProbePort(None, SYSTEM)
    assert port.listen(node_id, HERE, HERE)
    return port


class Port:
    """A node's port that does what the test says: each method is a step, and ``connection`` is the newest one."""

    def __init__(self, node_id: str, closing: contextlib.ExitStack) -> None:
        self._closing = closing
        self._listen(0)
        self.peer = Peer(node_id, HERE, self._socket.getsockname()[1])
        self.connection: socket.socket

    def _listen(self, port: int) -> None:
        self._socket = self._closing.enter_context(socket.create_server((HERE, port)))
        self._socket.settimeout(PATIENCE_S)

    def accepts(self) -> None:
        self.connection = self._closing.enter_context(self._socket.accept()[0])
        self.connection.settimeout(PATIENCE_S)

    def answers(self) -> None:
        """As the right process does."""
        self.accepts()
        assert self.connection.recv(1024) == hello(self.peer.node_id)
        self.connection.sendall(answer(self.peer.node_id, self.connection.getsockname(), self.connection.getpeername()))

    def strangers(self) -> None:
        """Another process has the port, after a reboot for example."""
        for says in (b"", b"SSH-2.0-OpenSSH_9\n", hello("a"), answer("b", (HERE, 1), (HERE, 2))):
            self.accepts()
            self.connection.sendall(says)
            self.closes()

    def waits(self) -> None:
        for piece in (WAITS, WAITS[:3], WAITS[3:]):
            self.connection.sendall(piece)

    def closes(self) -> None:
        self.connection.close()

    def resets(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def leaves(self) -> None:
        """With a last word."""
        self.connection.sendall(BYE)
        self.connection.close()

    def shuts(self) -> None:
        self._socket.close()

    def opens(self) -> None:
        """Listen once more at the same port."""
        self._listen(self.peer.port)


class Seen(PeerMonitor):
    """A watch, what it has found out, and what has come of each connection."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[str, str]] = []
        self.proved: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.waits: queue.SimpleQueue[None] = queue.SimpleQueue()
        super().__init__(self.proved.put, lambda: self.waits.put(None), SYSTEM)

    def ended(self, watched: Any, outcome: Any) -> None:
        super().ended(watched, outcome)
        self.outcomes.append((watched.peer.node_id, outcome))

    def holds(self, node_id: str) -> bool:
        """Whether that node has answered and its connection still lasts."""
        watched = self._watched.get(node_id)
        return watched is not None and watched.dial is not None and watched.dial.answered

    def hold(self, peer: Peer) -> None:
        self.add(peer)
        eventually(lambda: self.holds(peer.node_id))

    def next(self) -> str:
        return self.proved.get(timeout=PATIENCE_S)

    def works_on(self, closing: contextlib.ExitStack) -> None:
        """And nothing else was proved: of another one it is."""
        other = Port("other", closing)
        self.add(other.peer)
        other.answers()
        eventually(lambda: self.holds("other"))
        other.shuts()
        other.closes()
        assert self.next() == "other"
        assert self.proved.empty()


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    yield seen
    seen.close()


@pytest.fixture
def closing() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


Start = Callable[[str], tuple[Peer, subprocess.Popen[str]]]


@pytest.fixture
def start(closing: contextlib.ExitStack) -> Start:
    def start(node_id: str) -> tuple[Peer, subprocess.Popen[str]]:
        """An agent's process, as far as its port goes."""
        command = [sys.executable, "-c", LISTENS, node_id]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        closing.callback(child.communicate)
        closing.callback(child.kill)
        assert child.stdout is not None
        return Peer(node_id, HERE, int(child.stdout.readline())), child

    return start


@pytest.mark.parametrize("forks", [False, True])
def test_a_killed_process_is_known_to_be_gone(seen: Seen, start: Start, forks: bool) -> None:
    """Also if it leaves a child behind, which has inherited what it could."""
    peer, child = start("a")
    seen.hold(peer)
    if forks:  # only now: a connection that it was just accepting would be the child's, too
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "forked\n"
    child.kill()
    assert seen.next() == "a"


def test_a_stopped_process_is_not_gone_until_it_is_killed(
    seen: Seen, start: Start, closing: contextlib.ExitStack
) -> None:
    """Not one that was watched before, nor one that never answered: its kernel accepts for it."""
    (stopped, one), (early, other) = start("a"), start("b")
    seen.hold(stopped)
    stop(one.pid)
    stop(other.pid)
    seen.add(early)
    seen.works_on(closing)
    assert seen.holds("a")
    assert not seen.holds("b")
    other.kill()
    one.kill()
    assert seen.next() == "a"
    assert seen.proved.empty(), "b has never answered: nobody knows whose word a refusal is"


@pytest.mark.parametrize(
    ("steps", "gone", "holds"),
    [
        ("answers held shuts closes", True, False),
        ("answers held waits shuts closes", True, False),  # the end of who has waited is a proof
        # a firewall that was switched on resets what there is, or refuses what is new: it does not close in order
        ("answers held shuts resets unclear refused opens answers held", False, True),
        ("answers held shuts leaves unclear refused", False, False),
        ("answers held shuts", False, True),  # one that refuses new connections, and lets alone what there is
        ("shuts refused opens answers held", False, True),  # or address translation, or another machine
        ("answers closes answers held shuts", False, True),  # who answers again is not gone
        ("answers closes answers held shuts closes", True, False),
        ("answers held removed shuts closes", False, False),  # who is watched no longer is not told of
        ("answers held closes strangers", False, False),
        ("answers held closes strangers shuts", True, False),  # when that one goes, too
    ],
)
def test_what_proves_that_a_process_is_gone(
    seen: Seen, closing: contextlib.ExitStack, steps: str, gone: bool, holds: bool
) -> None:
    port = Port("a", closing)
    for order, step in enumerate(steps.split()):
        if order == steps.startswith("shuts"):  # nobody has ever answered there
            seen.add(port.peer)
        if step == "held":
            eventually(lambda: seen.holds("a"))
        elif step == "removed":
            seen.remove("a")
            eventually(lambda: not seen.holds("a"))
        elif step in ("unclear", "refused"):
            eventually(lambda step=step: ("a", step) in seen.outcomes)  # type: ignore[misc]
        else:
            getattr(port, step)()
    if gone:
        assert seen.next() == "a"
    seen.works_on(closing)
    assert seen.holds("a") is holds


def test_who_waits_for_the_service_says_so_and_is_watched_on(seen: Seen) -> None:
    """To those who are connected, and to those who come later; what is proved of it is the same as before."""
    listener = opened("a")
    peer = Peer("a", HERE, listener.port)
    seen.hold(peer)
    listener.note_outage(True)
    seen.waits.get(timeout=PATIENCE_S)
    later = Seen()
    later.hold(peer)
    later.waits.get(timeout=PATIENCE_S)
    later.close()
    assert seen.holds("a")
    listener.close()
    eventually(lambda: seen.outcomes)
    assert seen.outcomes[0] == ("a", "unclear")  # of its own will


def test_behind_somebody_in_between_nothing_is_ever_proved(
    seen: Seen, start: Start, closing: contextlib.ExitStack
) -> None:
    """A relay, as address translation: it refuses in its own name, and closes in order, whoever lives behind it."""
    with Relay(HERE, start("a")[0].port) as relay:
        seen.add(Peer("a", HERE, relay.port))
        eventually(lambda: ("a", "unclear") in seen.outcomes)  # it has answered, with another address
        relay.refuse()
        eventually(lambda: ("a", "refused") in seen.outcomes)
        seen.works_on(closing)
        assert not seen.holds("a")


@pytest.mark.parametrize("host", ["fe80::1%nowhere", "fe80::1%\0", HERE])
def test_a_node_that_cannot_be_dialled_harms_no_other(seen: Seen, closing: contextlib.ExitStack, host: str) -> None:
    """A member may say anything of itself: an interface that is not here, a port that is none."""
    seen.add(Peer("odd", host, 70_000 if host == HERE else 4000))
    eventually(lambda: ("odd", "unclear") in seen.outcomes)
    seen.works_on(closing)


def test_who_was_turned_away_is_watched_once_there_is_room(seen: Seen, closing: contextlib.ExitStack) -> None:
    seen._most = 1
    first, second = Port("a", closing), Port("b", closing)
    for port in (first, second):
        seen.add(port.peer)
    first.answers()
    eventually(lambda: seen.holds("a"))
    seen.remove("a")
    second.answers()
    eventually(lambda: seen.holds("b"))


def test_proof_counts_where_the_leader_was_watched() -> None:
    """What takes over is the same; that it is too late is found out when it is done."""
    due: list[Callable[[], object]] = []
    asked: list[tuple[str, int]] = []
    session: Any = SimpleNamespace(
        put=lambda _, guard, **__: asked.append((decode(LeaderInfo, guard.value).node_id, guard.revision)),
        list=lambda *_, **__: ([], 0),
    )
    registration = SimpleNamespace(session=session, me=node("me"), is_closed=False)
    registration.outage = SimpleNamespace(retry_until_lost=lambda _, ask: ask(1.0))
    view = SimpleNamespace(assignment=Assignment(1, 0, 3))
    request = Request("parallel", "r", "a,b", min_nodes=1, max_nodes=5, nproc_per_node=1)
    later = lambda _, task: due.append(task)  # noqa: E731
    round_, votes = SimpleNamespace(place=None), object()
    context: Any = (request, ElasticOptions(), view, registration, round_, None, None, later, SYSTEM, votes)
    election = Election(NodeContext(*context), lambda _: None)

    def leads(name: str, revision: int) -> None:
        view.leader = KeyValue("all/leader", encode(LeaderInfo(name, "me", HERE, "", 1)), revision)
        election.watch_leader()

    leads("a", 1)
    leads("b", 2)
    election._on_gone("a")
    due.pop()()
    election._on_gone("b")
    election.moved()
    due.pop()()
    election._on_gone("b")  # under way when it was forgotten
    leads("c", 3)
    election._on_gone("c")
    due.pop()()
    election.close()
    assert (asked, due) == ([("a", 1), ("c", 3)], [])


def test_strangers_cost_nothing_and_are_told_nothing(seen: Seen, closing: contextlib.ExitStack) -> None:
    listener = opened("a")
    try:
        dialled = [socket.create_connection((HERE, listener.port), PATIENCE_S) for _ in range(100)]
        silent = [closing.enter_context(each) for each in dialled]
        assert silent[0].recv(1) == b"", "there are too many: the oldest goes"
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"x" * 100_000, hello("b"), BYE):
            with socket.create_connection((HERE, listener.port), PATIENCE_S) as stranger:
                with contextlib.suppress(ConnectionError):  # it may not wait for all of it
                    stranger.sendall(said)
                with contextlib.suppress(ConnectionError):
                    assert stranger.recv(1024) == b"", "not a word"
        seen.hold(Peer("a", HERE, listener.port))
        for each in silent:
            each.close()
        assert seen.holds("a")
    finally:
        listener.close()
    eventually(lambda: not seen.holds("a"))
    assert seen.proved.empty()


def test_where_a_node_is_dialled() -> None:
    far = LeaderInfo("a", "there", "10.0.0.7", "192.0.2.7", 4000)
    assert peer_of(far, "here") == Peer("a", "10.0.0.7", 4000)
    near = LeaderInfo("a", "here", HERE, "192.0.2.7", 4000)
    assert peer_of(near, "here") == Peer("a", HERE, 4000)
    assert peer_of(near, "there") == Peer("a", "192.0.2.7", 4000), "its loopback is nobody else's"
    assert peer_of(LeaderInfo("a", "there", "10.0.0.7", "", 0), "here") is None, "it has no port of its own"
    assert peer_of(LeaderInfo("a", "there", "node-a.example", "", 4000), "here") is None, "no name is looked up"
