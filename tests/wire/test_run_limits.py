"""What a run and a store may keep is limited: what is beyond is refused by a sentence, and everybody goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
from kits.wire.attack_kit import MIB
from kits.wire.coordination_kit import Losses, Recorder, opened
from kits.wire.proxy_kit import Node
from kits.wire.session_peers import at
from kits.wire.stock_client import LATE
from kits.wire.wire_client import PATIENCE
from torch.distributed import DistError, TCPStore

from rdzv_plugins.coordination import Event, Session
from rdzv_plugins.errors import EndpointUnreachable, RdzvError
from rdzv_plugins.kvstore.native.limits import StoreLimits, usable_memory
from rdzv_plugins.kvstore.native.server import StoreServer

T = PATIENCE


class Job:
    """A run with a node that watches and writes, which must not notice what others do."""

    def __init__(self, port: int) -> None:
        self._heard: list[Event] = []
        self._rounds = 0
        self._session = session_of(port, "job")
        self._session.watch("k", self._heard.extend, timeout=T)

    def advance(self) -> None:
        self._rounds += 1
        self._session.put({"k": b"%d" % self._rounds}, timeout=T)
        held, _ = self._session.list("k", timeout=T)
        assert [each.value for each in held] == [b"%d" % self._rounds]

    def close(self) -> None:
        self.advance()
        assert [each.value for each in self._heard] == [b"%d" % number for number in range(1, self._rounds + 1)]
        self._session.close()


def session_of(port: int, run: str = "greedy", losses: Losses | None = None) -> Session:
    return opened(at(port, run), 600.0, losses)


@contextmanager
def limited(**limits: int) -> Iterator[tuple[StoreServer, Job]]:
    with (
        StoreServer("127.0.0.1", threads=2, limits=StoreLimits(**limits)) as server,
        closing(Job(server.port)) as job,
    ):
        yield server, job


Puts = Callable[[int], dict[str, bytes]]


@pytest.mark.parametrize(
    ("limit", "most", "put", "fits", "reason"),
    [
        ("run_bytes", 2 * MIB, lambda number: {f"big/{number}": bytes(100_000)}, 20, "run full"),
        ("stored_bytes", 4 * MIB, lambda number: {f"big/{number}": bytes(MIB)}, 3, "store full"),
    ],
)
def test_what_keys_may_take(limit: str, most: int, put: Puts, fits: int, reason: str) -> None:
    with limited(**{limit: most}) as (server, job), closing(session_of(server.port)) as greedy:
        for number in range(fits):
            greedy.put(put(number), timeout=T)
        with pytest.raises(RdzvError, match=f"{reason}.* {most} .*{limit}"):
            greedy.put(put(fits), timeout=T)
        job.advance()
        greedy.put(dict.fromkeys(put(0), b"again"), timeout=T)  # what is there may be written
        assert greedy.delete(list(put(1)), timeout=T)
        greedy.put(put(fits), timeout=T)  # and there is room for what has gone
        assert server.stats()["refused"] == {reason: 1}
        assert server.stats()["limits"][limit] == most
        greedy.close()
        with closing(session_of(server.port, "another")) as another:  # a run that has gone gives back what it had
            for number in range(fits):
                another.put(put(number), timeout=T)


def test_sessions_of_a_run_and_in_all() -> None:
    with limited(run_sessions=3, sessions=6) as (server, job), ExitStack() as held:
        for _ in range(3):
            held.enter_context(closing(session_of(server.port)))
        with pytest.raises(EndpointUnreachable, match=r"too many sessions.* 3 .*run_sessions") as refused:
            session_of(server.port)
        assert "--rdzv-conf" in refused.value.remedy
        for number in range(2):
            held.enter_context(closing(session_of(server.port, f"other-{number}")))
        with pytest.raises(EndpointUnreachable, match=r"too many sessions.* 6 .*\(sessions"):
            session_of(server.port, "one more")
        assert server.stats()["refused"] == {"too many sessions": 2}
        assert len(server.stats()["runs"]) == 4, "none that nobody is in"
        job.advance()


def test_watches_of_a_session_and_of_a_run() -> None:
    with limited(watches=3, run_watches=5) as (server, job), ExitStack() as held:
        first, second = (held.enter_context(closing(session_of(server.port))) for _ in range(2))
        for session, fits, words in ((first, 3, r" 3 .*\(watches"), (second, 2, r" 5 .*run_watches")):
            for _ in range(fits):
                session.watch("k", Recorder(), timeout=T)
            with pytest.raises(RdzvError, match=f"too many watches.*{words}"):
                session.watch("k", Recorder(), timeout=T)
        first.put({"k": b"goes on"}, timeout=T)
        job.advance()
        assert server.stats()["refused"] == {"too many watches": 2}


@pytest.mark.parametrize("through", ["direct", "proxy"])
def test_stock_clients_hear_of_a_full_store(through: str) -> None:
    limits = StoreLimits(stored_bytes=8 * MIB)
    with StoreServer("127.0.0.1", threads=2, limits=limits) as small, Node(small.port) as node:
        port = small.port if through == "direct" else node.port
        greedy, other = (TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=LATE) for _ in range(2))
        other.set("mine", "value")
        assert other.add("count", 1) == 1
        with pytest.raises((DistError, RuntimeError)):  # noqa: PT012
            for number in range(64):
                greedy.set(f"big/{number}", "x" * MIB)
                greedy.get(f"big/{number}")
        assert small.stats()["keyspaces"][0]["bytes"] <= small.stats()["bytes"]["stored_limit"] == 8 * MIB
        refused = (small if through == "direct" else node.proxy).stats()["refused"]
        assert sum(refused.values()) == 1, refused
        # small writes go on, what is there can be read, and there is room again when something has gone
        assert other.add("count", 1) == 2
        assert other.get("mine") == b"value"
        assert [other.delete_key(f"big/{number}") for number in range(2)] == [True, True]
        other.set("big/0", "y" * MIB)
        assert other.get("big/0") == b"y" * MIB


def test_by_default_it_is_a_share_of_the_memory() -> None:
    assert 64 * MIB <= usable_memory() < 2**50
    assert StoreLimits().most_stored == max(64 * MIB, usable_memory() // 4)
    assert StoreLimits(stored_bytes=7).most_stored == 7
