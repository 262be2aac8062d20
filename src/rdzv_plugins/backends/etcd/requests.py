"""A session's requests. On the loop's thread only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from rdzv_plugins.backends.etcd.api import rpc
from rdzv_plugins.backends.etcd.cluster import Cluster
from rdzv_plugins.backends.etcd.refusals import LeaseGone
from rdzv_plugins.backends.etcd.space import NEW, Space
from rdzv_plugins.coordination import KeyValue
from rdzv_plugins.errors import Compacted, RendezvousFailed
from rdzv_plugins.kit.loop import here
from rdzv_plugins.plain_text import some

logger = logging.getLogger(__name__)


class Requests:
    """The requests of a session. Each is repeated, at another member if necessary, when it is not answered.

    A write that is repeated must not take effect twice, nor long afterwards, through a member that was stopped while
    handling it. So the writes of a session are made one after the other, and each has a number, which the same
    transaction puts into the session's key: it takes effect only while that key has the previous number.

    Deadlines are in the monotonic clock's seconds. Raises what ``Cluster.call`` does, including ``LeaseGone``.
    """

    def __init__(self, cluster: Cluster, space: Space, lease: int) -> None:
        self._cluster, self._space, self._lease = cluster, space, lease
        self._writing = asyncio.Lock()
        # the session's key holds _held; or, while _unsure, that or _number: the last write may still take effect
        self._number, self._held, self._unsure = 0, NEW, False

    async def enter(self, deadline: float) -> None:
        """Write the key that says that this session lives."""
        await self._transaction("entering the run", self._space.enter(self._lease), deadline)

    async def create(self, key: str, value: bytes, deadline: float, *, ephemeral: bool) -> tuple[bool, KeyValue]:
        """See ``Session.create``."""
        [(_, change)] = self._space.puts({key: value}, self._lease_of(ephemeral))
        done, revision, read = await self._write(
            f"creating {key!r}", change, deadline, compare=[self._space.absent(key)], read=[self._space.get(key)]
        )
        if done:
            return True, KeyValue(key, value, revision)
        held = read[0].kvs
        if not held:  # deleted again before it was looked at: it was there
            return await self.create(key, value, deadline, ephemeral=ephemeral)
        return False, KeyValue(key, held[0].value, held[0].mod_revision)

    async def put(
        self, items: Mapping[str, bytes], guard: KeyValue | None, deadline: float, *, ephemeral: bool
    ) -> int | None:
        """See ``Session.put``: done in parts, each of them guarded."""
        revision = 0
        for names, change in self._space.puts(items, self._lease_of(ephemeral)):
            compare = [] if guard is None else [self._space.unchanged(guard)]
            what = f"writing {some(map(repr, names), 3)}"
            done, revision, _ = await self._write(what, change, deadline, compare=compare)
            if not done:
                return None
            if guard is not None and guard.key in names:
                guard = KeyValue(guard.key, items[guard.key], revision)
        return revision

    async def delete(self, keys: Sequence[str], guard: KeyValue | None, deadline: float) -> bool:
        """See ``Session.delete``: done in parts, each of them guarded."""
        for change in self._space.deletes(keys):
            compare = [] if guard is None else [self._space.unchanged(guard)]
            done, _, _ = await self._write(f"deleting {some(map(repr, keys), 3)}", change, deadline, compare=compare)
            if not done:
                return False
        return True

    def _lease_of(self, ephemeral: bool) -> int:
        return self._lease if ephemeral else self._space.run_lease

    async def _write(
        self, what: str, change: Sequence[Any], deadline: float, *, compare: Sequence[Any], read: Sequence[Any] = ()
    ) -> tuple[bool, int, Sequence[Any]]:
        """Return (whether it was done, its revision, what was read if it was not)."""
        async with self._turn(what, deadline):
            if self._unsure:
                await self._settle(deadline)
            self._number += 1
            mine = b"%d" % self._number
            request = self._space.numbered(self._lease, self._held, mine, compare=compare, change=change, read=read)
            self._unsure = True
            answer, again = await self._transaction(what, request, deadline)
            if answer.succeeded:
                self._held, self._unsure = mine, False
                return True, answer.header.revision, ()
            session, *others = (each.response_range for each in answer.responses)
            if not session.kvs:
                raise LeaseGone(f"etcd refuses {what}: the session's lease has ended")
            if session.kvs[0].value == mine:  # it was done at the first attempt
                self._held, self._unsure = mine, False
                return True, session.kvs[0].mod_revision, ()
            if again:  # a first attempt may still be under way
                done, revision = await self._settle(deadline)
                return done, revision, others
            self._unsure = False
            return False, 0, others

    @contextlib.asynccontextmanager
    async def _turn(self, what: str, deadline: float) -> AsyncIterator[None]:
        if self._writing.locked():
            try:
                await asyncio.wait_for(self._writing.acquire(), max(0.0, deadline - here().monotonic()))
            except asyncio.TimeoutError:
                raise TimeoutError(f"{what}: the write before it was not answered ({self._cluster.why()})") from None
        else:
            await self._writing.acquire()
        try:
            yield
        finally:
            self._writing.release()

    async def _settle(self, deadline: float) -> tuple[bool, int]:
        """Wait until the last write is done or never will be. Returns which, and its revision."""
        mine = b"%d" % self._number
        never = mine + b" never"
        request = self._space.numbered(self._lease, self._held, never, compare=(), change=(), read=())
        answer, _ = await self._transaction("writing", request, deadline)
        held, revision = never, 0
        if not answer.succeeded:
            [session] = (each.response_range for each in answer.responses)
            if not session.kvs:
                raise LeaseGone("etcd refuses writing: the session's lease has ended")
            held, revision = session.kvs[0].value, session.kvs[0].mod_revision
        self._held, self._unsure = held, False
        return held == mine, revision

    async def _transaction(self, what: str, request: Any, deadline: float) -> tuple[Any, bool]:
        """etcd's answer, and whether it was asked more than once."""
        answer, asked = await self._cluster.call(what, "KV/Txn", request, deadline, writes=True)
        return answer, asked > 1

    async def list(self, prefix: str, deadline: float) -> tuple[Sequence[KeyValue], int]:
        """The keys in the order of their last changes, and the revision of the answer."""
        answer = await self._range(f"listing {prefix!r}", self._space.all(prefix), deadline)
        return self._space.held(answer), answer.header.revision

    async def names(self, prefix: str, revision: int, deadline: float) -> set[str]:
        """The keys that began with ``prefix`` at ``revision``. Raises ``Compacted``."""
        what = f"watching {prefix!r}"
        try:
            answer = await self._range(what, self._space.names(prefix, revision), deadline)
        except RendezvousFailed as error:
            if "compacted" in str(error):
                raise Compacted(
                    f"{what}: etcd has forgotten what was at revision {revision}",
                    remedy="List the keys, and watch after the revision of that answer.",
                ) from None
            raise
        return {kv.key for kv in self._space.held(answer)}

    async def leave(self, deadline: float) -> None:
        """End the session's lease, and delete what is left if it was the last one."""

        with contextlib.suppress(RendezvousFailed):  # it has already gone
            await self._revoke(self._lease, "ending the session", deadline)
        await self._transaction("cleaning up", self._space.leave(), deadline)

    async def end_owner(self, key: str, deadline: float) -> bool:
        """See ``EndsSessions.end_session``: a key that is not ephemeral is attached to the lease of the run."""
        what = f"ending the session of {key!r}"
        answer = await self._range(what, rpc.RangeRequest(key=self._space.full(key)), deadline)
        lease = answer.kvs[0].lease if answer.kvs else 0
        if lease in (0, self._lease, self._space.run_lease):
            return False
        try:
            await self._revoke(lease, what, deadline)
        except LeaseGone:  # by itself, or another node was faster
            pass
        except RendezvousFailed as error:  # this node may not do it, which says nothing about its own session
            logger.info("%s", error)
            return False
        return True

    async def _range(self, what: str, request: Any, deadline: float) -> Any:
        return (await self._cluster.call(what, "KV/Range", request, deadline))[0]

    async def _revoke(self, lease: int, what: str, deadline: float) -> None:
        await self._cluster.call(what, "Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease), deadline)
