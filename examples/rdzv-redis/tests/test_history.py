"""Redis has lost its last changes, and others have got their revisions: nobody goes on with what is no more."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kit import Losses, Recorder, T, backend_at, client, keys_of, opened, redis_server
from rdzv_plugins import KeyValue
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.testing import ServerProcess

from rdzv_redis.coordination import RedisCoordination
from rdzv_redis.requests import Gone

LOST = "Redis has lost data of this run"


class Past:
    """A Redis that can be set back, as after a power failure in which the last second was lost."""

    def __init__(self, server: ServerProcess, data: Path, kept: Path) -> None:
        self.server, self._data, self._kept = server, data, kept

    def keep(self) -> None:
        """This is what it will have."""
        shutil.copytree(self._data, self._kept)  # Redis writes what it has done before it answers

    def come_back(self) -> None:
        self.server.kill()
        shutil.rmtree(self._data)
        shutil.copytree(self._kept, self._data)
        self.server.start_again()


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Past]:
    with redis_server(tmp_path / "data") as server:
        yield Past(server, tmp_path / "data", tmp_path / "kept")


@pytest.fixture
def backends(past: Past) -> Iterator[Callable[[], RedisCoordination]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(backend_at(past.server.port))


def deaf(session: Any) -> Any:
    """It asks nothing and hears nothing by itself, so that a test says who is the first to ask."""
    session._loop.run(session._work.stop(), T)
    return session


def rewrite(past: Past, backends: Callable[[], RedisCoordination], changes: int) -> None:
    """Two changes are lost, and ``changes`` others are done, by somebody who knows nothing of it."""
    past.come_back()
    newcomer = opened(backends())
    for number in range(changes):
        newcomer.put({f"new/{number}": b""}, timeout=T)


def test_changes_that_are_lost_and_overwritten_are_noticed_by_all_who_knew_them(
    past: Past, backends: Callable[[], RedisCoordination]
) -> None:
    losses, recorder, ignorant = [Losses(), Losses()], Recorder(), Losses()
    reader, writer = opened(backends(), losses=losses[0]), opened(backends(), losses=losses[1])
    reader.watch("", recorder, timeout=T)
    writer.put({"old": b""}, timeout=T)
    late = deaf(opened(backends(), losses=ignorant))
    past.keep()
    writer.put({"lost": b""}, timeout=T)
    writer.put({"lost/2": b""}, timeout=T)
    recorder.take(3)
    rewrite(past, backends, changes=3)
    for each in losses:
        error = each.next()
        assert LOST in str(error)
        assert "appendonly yes" in error.remedy
    assert [each.key for each in recorder.events] == ["old", "lost", "lost/2"], "nothing of another history is told"
    again = opened(backends())
    assert keys_of(again) == {"old": b"", "new/0": b"", "new/1": b"", "new/2": b""}
    assert keys_of(late) == keys_of(again), "who knew nothing of what is lost goes on"
    assert ignorant.none


@pytest.mark.parametrize("changes", [1, 2, 3], ids=["fewer", "as many", "more"])
def test_whoever_asks_first_notices(past: Past, backends: Callable[[], RedisCoordination], changes: int) -> None:
    """By its keep-alive, by its watches, and by a request whose guard has another's revision."""
    keeper, follower, writer = (deaf(opened(backends())) for _ in range(3))
    writer.put({"k": b"old"}, timeout=T)
    past.keep()
    revision = writer.put({"k": b"lost", "lost": b""}, timeout=T)
    keys_of(keeper)
    follower._loop.run(_followed(follower, revision), T)
    rewrite(past, backends, changes)
    with pytest.raises(Gone, match="BACK"):
        keeper._loop.run(keeper._work.requests.keep(time.monotonic() + T), T)
    if changes > 2:  # else nothing is told
        assert LOST in str(follower._loop.run(follower._work.follower.run(), T))
    with pytest.raises(ConnectionLost, match=LOST):
        writer.put({"k": b"wrong"}, guard=KeyValue("new/0", b"", revision - 1), timeout=T)
    with pytest.raises(ConnectionLost, match=LOST):
        follower.list("", timeout=T)
    assert keys_of(opened(backends()))["k"] == b"old"


async def _followed(session: Any, revision: int) -> None:
    """It has heard of everything up to there."""
    wire = await session._work.server.connect(time.monotonic() + T)
    try:
        ((_, entries),) = await wire.ask(
            "XREAD", "STREAMS", session._work.space.events, f"{session._work.follower._position}-0"
        )
        session._work.follower._take(entries)
    finally:
        await wire.drop()
    assert session._work.follower._position == revision


@pytest.mark.parametrize(
    "evicted",
    [("values",), ("names",), ("values", "names"), ("state",)],
    ids=" and ".join,
)
def test_keys_that_redis_has_thrown_away_are_noticed(
    past: Past, backends: Callable[[], RedisCoordination], evicted: tuple[str, ...]
) -> None:
    session = deaf(opened(backends()))
    session.put({"k": b"", "l": b""}, timeout=T)
    with client(past.server.port) as redis:
        redis.delete(*(f"rdzv-plugins/run/{name}" for name in evicted))
    with pytest.raises(ConnectionLost, match=LOST):
        session.list("", timeout=T)
    again = opened(backends())
    again.put({"new": b""}, timeout=T)
    assert keys_of(again) == {"new": b""}, "nobody is left with half of the data"
