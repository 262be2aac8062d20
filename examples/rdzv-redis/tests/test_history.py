"""Redis has lost its last changes, and others have got their revisions: nobody goes on with what is no more."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kit import Losses, Recorder, T, backend_at, client, client_at, connected, keys_of, opened, redis_server
from rdzv_plugins import KeyValue
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.kit import Coordination
from rdzv_plugins.testing import ServerProcess

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
def backends(past: Past) -> Iterator[Callable[[], Coordination]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(backend_at(past.server.port))


def rewrite(past: Past, backends: Callable[[], Coordination], changes: int) -> None:
    """Two changes are lost, and ``changes`` others are done, by somebody who knows nothing of it."""
    past.come_back()
    newcomer = opened(backends())
    for number in range(changes):
        newcomer.put({f"new/{number}": b""}, timeout=T)


def test_changes_that_are_lost_and_overwritten_are_noticed_by_all_who_knew_them(
    past: Past, backends: Callable[[], Coordination]
) -> None:
    losses, recorder = [Losses(), Losses()], Recorder()
    reader, writer = opened(backends(), losses=losses[0]), opened(backends(), losses=losses[1])
    reader.watch("", recorder, timeout=T)
    writer.put({"old": b""}, timeout=T)
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


def test_who_knew_nothing_of_what_is_lost_goes_on(past: Past, backends: Callable[[], Coordination]) -> None:
    async def ask() -> None:
        late = await connected(client_at(past.server.port))
        await late.disconnect()
        past.keep()
        opened(backends()).put({"lost": b""}, timeout=T)
        rewrite(past, backends, changes=3)
        await late.connect()
        await late.keep_alive()
        assert [each.key for each in (await late.list("new/"))[0]] == ["new/0", "new/1", "new/2"]
        await late.disconnect()

    asyncio.run(ask())


@pytest.mark.parametrize("changes", [1, 2, 3], ids=["fewer", "as many", "more"])
def test_whoever_asks_first_notices(past: Past, backends: Callable[[], Coordination], changes: int) -> None:
    """By its keep-alive, by its watches, and by a request whose guard has another's revision."""

    async def ask() -> None:
        keeper, follower, writer = [await connected(client_at(past.server.port)) for _ in range(3)]
        await writer.put(1, {"k": b"old"}, ephemeral=False, guard=None)
        past.keep()
        revision = await writer.put(2, {"k": b"lost", "lost": b""}, ephemeral=False, guard=None)
        assert revision is not None
        heard = follower.watch("", revision - 1)
        while (await heard.__anext__())[1] < revision:
            pass
        await keeper.list("")
        for each in (keeper, follower, writer):
            await each.disconnect()  # so that the test says who is the first to ask
        rewrite(past, backends, changes)
        for each in (keeper, follower, writer):
            await each.connect()
        with pytest.raises(ConnectionLost, match=LOST):
            await keeper.keep_alive()
        if changes > 2:  # else nothing is told
            with pytest.raises(ConnectionLost, match=LOST):
                async for _ in follower.watch("", revision):
                    pass
        guard = KeyValue("new/0", b"", revision - 1)
        with pytest.raises(ConnectionLost, match=LOST):
            await writer.put(3, {"k": b"wrong"}, ephemeral=False, guard=guard)
        with pytest.raises(ConnectionLost, match=LOST):
            await follower.list("")
        for each in (keeper, follower, writer):
            await each.disconnect()

    asyncio.run(ask())
    assert keys_of(opened(backends()))["k"] == b"old"


@pytest.mark.parametrize(
    "evicted",
    [("values",), ("names",), ("values", "names"), ("state",)],
    ids=" and ".join,
)
def test_keys_that_redis_has_thrown_away_are_noticed(
    past: Past, backends: Callable[[], Coordination], evicted: tuple[str, ...]
) -> None:
    session = opened(backends())
    session.put({"k": b"", "l": b""}, timeout=T)
    with client(past.server.port) as redis:
        redis.delete(*(f"rdzv-plugins/run/{name}" for name in evicted))
    with pytest.raises(ConnectionLost, match=LOST):
        session.list("", timeout=T)
    again = opened(backends())
    again.put({"new": b""}, timeout=T)
    assert keys_of(again) == {"new": b""}, "nobody is left with half of the data"
