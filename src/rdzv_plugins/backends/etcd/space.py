"""Where the keys of a run lie in etcd, and the requests that read and change them.

``<prefix>/<run id>/k/`` holds the keys of the run, ``<prefix>/<run id>/s/`` one key for each session. Everything is
attached to a lease: ephemeral keys to that of their session, the rest to one of the run. So a job that was killed as a
whole leaves nothing behind, and whoever opens a session sees whether another one lives.
"""

from __future__ import annotations

import hashlib
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rdzv_plugins.backends.etcd.api import rpc
from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.plain_text import name_of

RUN_LEASE_S = 600
"""How many seconds the keys of a run outlive its last node if that could not clean up."""
MOST_OPERATIONS = 127
"""Operations in one transaction, besides the session's own key: etcd's default is 128 (--max-txn-ops)."""
NEW = b"0"
"""What a session's key holds before its first write."""
MOST_BYTES = 1 << 20
"""Bytes in one transaction: below etcd's default of 1.5 MiB (--max-request-bytes)."""


class Space:
    """The keys of one run. Immutable."""

    def __init__(self, prefix: str, run_id: str) -> None:
        # quoted: run "a" must not own the keys of run "a/b"
        self.path = f"{prefix.rstrip('/')}/{urllib.parse.quote(run_id, safe='')}/"
        self._keys = f"{self.path}k/".encode()
        self._sessions = f"{self.path}s/".encode()
        digest = hashlib.sha256(self.path.encode()).digest()
        self.run_lease = int.from_bytes(digest[:8], "big") >> 1 or 1
        """The same for all nodes of the run, which have no other way to agree on it before they have met."""

    def full(self, key: str) -> bytes:
        """The key as etcd knows it."""
        return self._keys + key.encode()

    def events(self, answer: Any) -> Iterator[Event]:
        """The events that a watch was told. Keys whose names are not text are left out."""
        for event in answer.events:
            name = name_of(event.kv.key[len(self._keys) :])
            if name is not None:
                gone = event.type == event.DELETE
                yield Event(name, None if gone else event.kv.value, event.kv.mod_revision)

    def held(self, answer: Any) -> list[KeyValue]:
        """The keys in a range's answer."""
        named = ((name_of(kv.key[len(self._keys) :]), kv) for kv in answer.kvs)
        return [KeyValue(name, kv.value, kv.mod_revision) for name, kv in named if name is not None]

    def all(self, prefix: str) -> Any:
        """The request for all keys that begin with ``prefix``, in the order of their last changes."""
        start = self.full(prefix)
        return rpc.RangeRequest(
            key=start, range_end=_end(start), sort_order=rpc.RangeRequest.ASCEND, sort_target=rpc.RangeRequest.MOD
        )

    def names(self, prefix: str, revision: int) -> Any:
        """The request for the names of the keys that began with ``prefix`` at ``revision``."""
        start = self.full(prefix)
        return rpc.RangeRequest(key=start, range_end=_end(start), revision=revision, keys_only=True)

    def get(self, key: str) -> Any:
        """The operation that reads one key, if it exists."""
        return _get(self.full(key))

    def unchanged(self, guard: KeyValue) -> Any:
        """The condition that a key was not written since: revision 0 means that it is absent."""
        return _unchanged(self.full(guard.key), guard.revision)

    def puts(self, items: Mapping[str, bytes], lease: int) -> Iterator[tuple[list[str], list[Any]]]:
        """The keys and the operations of as few transactions as etcd's limits allow, in order."""
        names: list[str] = []
        operations: list[Any] = []
        size = 0
        for key, value in items.items():
            grown = size + len(value) + len(key)
            if operations and (len(operations) == MOST_OPERATIONS or grown > MOST_BYTES):
                yield names, operations
                names, operations, grown = [], [], len(value) + len(key)
            names.append(key)
            operations.append(_put(self.full(key), value, lease))
            size = grown
        yield names, operations

    def deletes(self, keys: Sequence[str]) -> Iterator[list[Any]]:
        """The operations of as few transactions as etcd's limits allow."""
        names = [self.full(key) for key in dict.fromkeys(keys)]
        for start in range(0, max(1, len(names)), MOST_OPERATIONS):
            yield [_delete(name) for name in names[start : start + MOST_OPERATIONS]]

    def enter(self, lease: int) -> Any:
        """The request to announce that a session lives. If it is the only one, what exists was left by a dead run."""
        name = self._session(lease)
        mine = _put(name, NEW, lease)
        # an attempt that arrives late, when the session has already written, must not reset it
        once = rpc.RequestOp(request_txn=rpc.TxnRequest(compare=[_unchanged(name, 0)], success=[mine]))
        return rpc.TxnRequest(compare=[self._nobody()], success=[_delete_all(self._keys), mine], failure=[once])

    def numbered(
        self,
        lease: int,
        before: bytes,
        after: bytes,
        *,
        compare: Sequence[Any],
        change: Sequence[Any],
        read: Sequence[Any],
    ) -> Any:
        """A transaction that takes effect once at most, if its session lives.

        It changes the session's key from ``before`` to ``after``. Otherwise it reads that key, and ``read``.
        """
        name = self._session(lease)
        current = rpc.Compare(key=name, target=rpc.Compare.VALUE, result=rpc.Compare.EQUAL, value=before)
        return rpc.TxnRequest(
            compare=[current, *compare], success=[*change, _put(name, after, lease)], failure=[_get(name), *read]
        )

    def anybody(self) -> Any:
        """The request that counts the living sessions of the run."""
        return rpc.RangeRequest(key=self._sessions, range_end=_end(self._sessions), count_only=True)

    def leave(self) -> Any:
        """Delete the keys of the run, if no session lives."""
        return rpc.TxnRequest(compare=[self._nobody()], success=[_delete_all(self._keys)])

    def _session(self, lease: int) -> bytes:
        return self._sessions + f"{lease:016x}".encode()

    def _nobody(self) -> Any:
        """The condition that no session lives: it is true of every key in an empty range."""
        compare = _unchanged(self._sessions, 0)
        compare.range_end = _end(self._sessions)
        return compare


def watch_request(key: bytes, start: int) -> Any:
    """Every change from revision ``start`` on of keys that begin with ``key``."""
    return rpc.WatchRequest(create_request=rpc.WatchCreateRequest(key=key, range_end=_end(key), start_revision=start))


def _unchanged(key: bytes, revision: int) -> Any:
    """The condition that the key has this revision; 0 means that it is absent."""
    return rpc.Compare(key=key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=revision)


def _put(key: bytes, value: bytes, lease: int) -> Any:
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease))


def _get(key: bytes) -> Any:
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key))


def _delete(key: bytes) -> Any:
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))


def _delete_all(prefix: bytes) -> Any:
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=prefix, range_end=_end(prefix)))


def _end(prefix: bytes) -> bytes:
    """The first key after all that begin with ``prefix``, which ends in "/" or in text: never in the last byte."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
