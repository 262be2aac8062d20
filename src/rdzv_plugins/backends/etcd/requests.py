"""A session's requests, each as etcd's transactions make it possible. On the loop's thread only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rdzv_plugins.backends.etcd.api import rpc
from rdzv_plugins.backends.etcd.cluster import Cluster
from rdzv_plugins.backends.etcd.connection import Connection
from rdzv_plugins.backends.etcd.space import Space
from rdzv_plugins.coordination import KeyValue
from rdzv_plugins.errors import Compacted, RendezvousFailed

_NAMED = 3


class Requests:
    """Each is repeated at another member when one fails. Deadlines are in the monotonic clock's seconds.

    Raises what ``Cluster.call`` does.
    """

    def __init__(self, cluster: Cluster, space: Space) -> None:
        self._cluster, self._space = cluster, space

    async def transaction(self, what: str, request: Any, deadline: float) -> tuple[Any, bool]:
        """etcd's answer, and whether it was asked more than once: then the answer may be to its own first try."""
        asked = 0

        def ask(connection: Connection, timeout: float) -> Any:
            nonlocal asked
            asked += 1
            return connection.unary("KV/Txn", request, timeout)

        answer = await self._cluster.call(what, ask, deadline)
        return answer, asked > 1

    async def create(self, key: str, value: bytes, lease: int, deadline: float, *, mine: bool) -> tuple[bool, KeyValue]:
        """``mine``: the lease is this session's alone, which tells who has written the key."""
        request = self._space.create(key, value, lease)
        while True:
            answer, repeated = await self.transaction(f"creating {key!r}", request, deadline)
            if answer.succeeded:
                return True, KeyValue(key, value, answer.header.revision)
            kv = answer.responses[0].response_range.kvs[0]
            ours = repeated and mine and kv.lease == lease and kv.value == value
            return ours, KeyValue(key, kv.value, kv.mod_revision)

    async def put(self, items: Mapping[str, bytes], lease: int, guard: KeyValue | None, deadline: float) -> int | None:
        """In parts, each of them guarded."""
        revision = 0
        for names, operations in self._space.puts(items, lease):
            what = f"writing {_named(names)}"
            answer, repeated = await self.transaction(what, self._space.guarded(operations, guard), deadline)
            changes_guard = guard is not None and guard.key in names
            if not answer.succeeded:
                if repeated and changes_guard:
                    raise TimeoutError(f"{what}: etcd was asked again, and cannot tell whether it had done it before")
                return None
            revision = answer.header.revision
            if guard is not None and changes_guard:
                guard = KeyValue(guard.key, items[guard.key], revision)
        return revision

    async def delete(self, keys: Sequence[str], guard: KeyValue | None, deadline: float) -> bool:
        """In parts, each of them guarded."""
        for operations in self._space.deletes(keys):
            request = self._space.guarded(operations, guard)
            answer, _ = await self.transaction(f"deleting {_named(keys)}", request, deadline)
            if not answer.succeeded:
                return False
        return True

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

    async def leave(self, lease: int) -> None:
        """End a session's lease, and delete what is left if it was the last one."""
        deadline = time.monotonic() + 60

        def revoke(connection: Connection, timeout: float) -> Any:
            return connection.unary("Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease), timeout)

        try:
            await self._cluster.call("ending the session", revoke, deadline)
        except RendezvousFailed:
            pass  # it was gone already
        await self.transaction("cleaning up", self._space.leave(), deadline)

    async def _range(self, what: str, request: Any, deadline: float) -> Any:
        def ask(connection: Connection, timeout: float) -> Any:
            return connection.unary("KV/Range", request, timeout)

        return await self._cluster.call(what, ask, deadline)


def _named(keys: Sequence[str]) -> str:
    """Some of the keys, for messages."""
    return ", ".join(map(repr, keys[:_NAMED])) + (f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else "")
