"""``EtcdCoordination``, and what its sessions ask of etcd: the kit repeats it at another member if it is not answered.

etcd ends a lease that was not refreshed within its time to live, by the clock of its leader alone; after an election
every lease has its full time again. So only etcd knows whether a lease lives: while no member answers, this node does
not know, and goes on for as long as the user allows (``kit.keeping``).

A write that is repeated must not take effect twice, nor long afterwards, through a member that was stopped while
handling it. So each transaction has a number, which it puts into the session's key: it takes effect only while that key
has the previous number. All is on the loop's thread only.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from rdzv_plugins.backends.etcd import ACCOUNT
from rdzv_plugins.backends.etcd.api import grpc, rpc
from rdzv_plugins.backends.etcd.cluster import ClusterClient, Connection, Whose
from rdzv_plugins.backends.etcd.refusals import denied
from rdzv_plugins.backends.etcd.space import NEW, RUN_LEASE_S, Space, watch_request
from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import Compacted, ConnectionLost, RendezvousFailed
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kit.asking import Asking
from rdzv_plugins.kit.client import SessionEnded
from rdzv_plugins.kit.coordination import Coordination
from rdzv_plugins.kit.keeping import PER_TTL
from rdzv_plugins.kit.loop import TIMEOUTS, here, hold_for_good
from rdzv_plugins.kit.security import Security
from rdzv_plugins.kit.session import ClientSession
from rdzv_plugins.plain_text import some

logger = logging.getLogger(__name__)

_MORE_S = 2.0
"""Seconds for what is asked once a member answers, however late that is."""


class EtcdClient(ClusterClient):
    """One session, which is a lease: its ephemeral keys are attached to that, all others to the lease of the run."""

    def __init__(self, endpoints: Sequence[Endpoint], security: Security, space: Space, whose: Whose) -> None:
        super().__init__(endpoints, security, space.path, whose)
        self._space = space
        self._keeping: Any = None  # the stream by which the leases are refreshed
        self._run_asked = -math.inf  # the run's lease may be about to end
        self._lease = 0
        self._half_open = False
        self._new_lease()

    def _new_lease(self) -> None:
        self._lease = secrets.randbits(63) or 1  # chosen here: a repeated request grants the same one
        # the session's key holds _held; or, while _unsure, that or _count: the last transaction may still take effect
        self._count, self._held, self._unsure = 0, NEW, False
        self._asked = (0, 0)  # what that was: of which write it is which part
        self._turn, self._finished = 0, list[int]()  # the last write, and the revisions of its parts that are done

    async def disconnect(self) -> None:
        self._hang_up()
        await super().disconnect()

    async def close(self) -> None:
        """If it was never open, others are not to wait for its lease to end."""
        if self._half_open and self._connection is not None:
            await self.end()
        await super().close()

    async def open(self, ttl: float) -> float:
        """Get a lease and announce that this session lives. etcd counts in whole seconds, and may grant more."""
        while True:
            try:
                granted = await self._grant(self._lease, math.ceil(ttl))
                self._half_open = True
                what, run_lease = "the lease of the run", self._space.run_lease
                request = rpc.LeaseTimeToLiveRequest(ID=run_lease)
                if (await self._ask(what, "Lease/LeaseTimeToLive", request)).TTL <= 0:
                    await self._grant(run_lease, RUN_LEASE_S)
                await self._ask("entering the run", "KV/Txn", self._space.enter(self._lease))
                self._half_open, self._proven = False, True
                return float(granted)
            except SessionEnded:  # before it was of use: either this process or etcd has stood still
                self._new_lease()

    async def _grant(self, lease: int, ttl: int) -> int:
        """Grant a lease of that number; returns its time to live in seconds, which may be more than was requested."""
        try:
            answer = await self._ask("a lease", "Lease/LeaseGrant", rpc.LeaseGrantRequest(TTL=ttl, ID=lease))
        except RendezvousFailed as error:
            if "lease already exists" in str(error):  # by an attempt that got no answer, or by another node
                return ttl
            raise
        return int(answer.TTL)

    async def keep_alive(self) -> None:
        """Refresh the session's lease, and at times that of the run."""
        await self._logged_in("refreshing the lease", self._refresh)

    async def _refresh(self, connection: Connection) -> None:
        if self._keeping is None:
            self._keeping = connection.stream("Lease/LeaseKeepAlive")
        leases = [self._lease]
        if here().now() - self._run_asked >= RUN_LEASE_S / PER_TTL:
            leases.append(self._space.run_lease)
        try:
            for lease in leases:
                asked = here().now()
                await self._keeping.write(rpc.LeaseKeepAliveRequest(ID=lease))
                if (await _read(self._keeping)).TTL <= 0:
                    raise SessionEnded
                if lease == self._space.run_lease:
                    self._run_asked = asked
        except BaseException:
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        self._keeping = None

    async def end(self) -> None:
        """End the lease first, so that others know; then delete what the last session leaves."""
        with contextlib.suppress(SessionEnded, RendezvousFailed):  # it has already gone
            await self._revoke(self._lease, "ending the session")
        await self._ask("cleaning up", "KV/Txn", self._space.leave())

    async def _revoke(self, lease: int, what: str) -> None:
        await self._ask(what, "Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease))

    async def end_session(self, key: str) -> bool:
        """Revoke the lease that the key carries: one that is not ephemeral is attached to the lease of the run."""
        what = f"ending the session of {key!r}"
        answer = await self._ask(what, "KV/Range", rpc.RangeRequest(key=self._space.full(key)))
        lease = answer.kvs[0].lease if answer.kvs else 0
        if lease in (0, self._lease, self._space.run_lease):
            return False
        try:
            await self._revoke(lease, what)
        except SessionEnded:  # by itself, or another node was faster
            pass
        except RendezvousFailed as error:  # this node may not do it, which says nothing about its own session
            logger.info("%s", error)
            return False
        return True

    async def create(self, number: int, key: str, value: bytes, *, ephemeral: bool) -> tuple[bool, KeyValue]:
        self._begin(number)
        [(_, change)] = self._space.puts({key: value}, self._lease_of(ephemeral))
        compare, read = [self._space.unchanged(KeyValue(key, b"", 0))], [self._space.get(key)]
        while True:
            done, revision, found = await self._write(f"creating {key!r}", change, compare=compare, read=read)
            if done:
                return True, KeyValue(key, value, revision)
            if held := found[0].kvs:
                return False, KeyValue(key, held[0].value, held[0].mod_revision)
            self._finished.append(0)  # deleted again before it was looked at: it was there

    async def put(
        self, number: int, items: Mapping[str, bytes], *, ephemeral: bool, guard: KeyValue | None
    ) -> int | None:
        """Put in transactions of at most 127 keys and 1 MiB, each of them guarded."""
        self._begin(number)
        revision = 0
        for part, (names, change) in enumerate(self._space.puts(items, self._lease_of(ephemeral))):
            if part == len(self._finished) and not await self._part(
                f"writing {some(map(repr, items), 3)}", change, guard
            ):
                return None
            revision = self._finished[part]
            if guard is not None and guard.key in names:
                guard = KeyValue(guard.key, items[guard.key], revision)
        return revision

    async def delete(self, number: int, keys: Sequence[str], *, guard: KeyValue | None) -> bool:
        """Delete in transactions of at most 127 keys, each of them guarded."""
        self._begin(number)
        for part, change in enumerate(self._space.deletes(keys)):
            if part == len(self._finished) and not await self._part(
                f"deleting {some(map(repr, keys), 3)}", change, guard
            ):
                return False
        return True

    def _lease_of(self, ephemeral: bool) -> int:
        return self._lease if ephemeral else self._space.run_lease

    def _begin(self, number: int) -> None:
        """What is done of a write that is repeated is not done again."""
        if number != self._turn:
            self._turn, self._finished = number, []

    async def _part(self, what: str, change: Sequence[Any], guard: KeyValue | None) -> bool:
        compare = [] if guard is None else [self._space.unchanged(guard)]
        done, revision, _ = await self._write(what, change, compare=compare)
        if done:
            self._finished.append(revision)
        return done

    async def _write(
        self, what: str, change: Sequence[Any], *, compare: Sequence[Any], read: Sequence[Any] = ()
    ) -> tuple[bool, int, Sequence[Any]]:
        """Return (whether it was done, its revision, what was read if it was not)."""
        asked = self._turn, len(self._finished)
        again = self._unsure and asked == self._asked
        if not again:
            if self._unsure:
                await self._settle()
            self._count, self._asked = self._count + 1, asked
        mine = b"%d" % self._count
        request = self._space.numbered(self._lease, self._held, mine, compare=compare, change=change, read=read)
        self._unsure = True
        answer = await self._ask(what, "KV/Txn", request)
        if answer.succeeded:
            self._held, self._unsure = mine, False
            return True, answer.header.revision, ()
        session, *others = (each.response_range for each in answer.responses)
        if not session.kvs:
            raise SessionEnded
        if session.kvs[0].value == mine:  # it was done at the first attempt
            self._held, self._unsure = mine, False
            return True, session.kvs[0].mod_revision, ()
        if again:  # a first attempt may still be under way
            return *(await self._settle()), others
        self._unsure = False
        return False, 0, others

    async def _settle(self) -> tuple[bool, int]:
        """Wait until the last transaction is done or never will be. Returns which, and its revision."""
        mine = b"%d" % self._count
        held, revision = mine + b" never", 0
        request = self._space.numbered(self._lease, self._held, held, compare=(), change=(), read=())
        answer = await self._ask("writing", "KV/Txn", request)
        if not answer.succeeded:
            [session] = (each.response_range for each in answer.responses)
            if not session.kvs:
                raise SessionEnded
            held, revision = session.kvs[0].value, session.kvs[0].mod_revision
        self._held, self._unsure = held, False
        return held == mine, revision

    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        answer = await self._ask(f"listing {prefix!r}", "KV/Range", self._space.all(prefix))
        return self._space.held(answer), answer.header.revision

    async def names_at(self, prefix: str, revision: int) -> set[str]:
        what = f"watching {prefix!r}"
        try:
            answer = await self._ask(what, "KV/Range", self._space.names(prefix, revision))
        except RendezvousFailed as error:
            if "compacted" in str(error):
                raise Compacted(
                    f"{what}: etcd has forgotten what was at revision {revision}",
                    remedy="List the keys, and watch after the revision of that answer.",
                ) from None
            raise
        return {kv.key for kv in self._space.held(answer)}

    async def watch(self, prefix: str, after: int) -> AsyncIterator[tuple[Sequence[Event], int]]:
        refused = False
        while True:
            connection = self._connected()
            with self._translated("watching"):
                stream, token = connection.stream("Watch/Watch"), connection.token
                try:
                    await stream.write(watch_request(self._space.full(prefix), after + 1))
                    while not (answer := await _read(stream)).canceled:
                        if answer.created:
                            yield (), after
                        if answer.events:
                            yield list(self._space.events(answer)), answer.events[-1].kv.mod_revision
                finally:
                    stream.cancel()
            if not answer.created:
                if answer.compact_revision:
                    raise Compacted(f"watching {prefix!r}: etcd has forgotten what came after revision {after}")
                raise EOFError(answer.cancel_reason or "it has cancelled a watch")
            if refused or not self.security.user:
                raise self._refused(answer.cancel_reason)
            refused = True  # the stream's token may be too old
            await self._log_in(connection, token)

    def _refused(self, reason: str) -> RendezvousFailed:
        """The error for a watch that was cancelled for ``reason`` as soon as it was created."""
        if "permission" in reason:
            return denied(self._path, self.security)
        return RendezvousFailed(f"etcd refuses to watch {self._path}: {reason or 'it does not say why'}")

    async def peek(self, key: str) -> bytes | None:
        """The current value of the run's ``key`` if a session of the run lives."""
        what = f"reading {key!r}"
        alive = await self._ask(what, "KV/Range", self._space.anybody())
        answer = await self._ask(what, "KV/Range", rpc.RangeRequest(key=self._space.full(key)))
        return answer.kvs[0].value if alive.count and answer.kvs else None


async def _read(stream: Any) -> Any:
    message = await stream.read()
    if message is grpc.aio.EOF:
        raise EOFError
    return message


class EtcdCoordination(Coordination):
    """Coordination of run ``run_id`` by the etcd cluster whose members are ``endpoints``. Thread-safe.

    All its keys begin with ``prefix``. ``outage_timeout``: seconds for which a session goes on while no member answers;
    after that it is lost. ``whose``: see ``Request.whose``.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        run_id: str,
        *,
        security: Security | None = None,
        prefix: str = "/rdzv-plugins",
        outage_timeout: float = 60.0,
        whose: Whose = None,
    ) -> None:
        space = Space(prefix, run_id)
        self._client = functools.partial(EtcdClient, endpoints, security or Security(), space, whose)
        super().__init__("etcd", self._client, outage_timeout)

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> ClientSession:
        """See ``Coordination.open_session``; etcd counts ``ttl`` in whole seconds, and may grant more.

        ``EndpointUnreachable`` has one reason for each member.
        """
        hold_for_good()  # gRPC cannot move from one loop to another
        return super().open_session(ttl, on_lost=on_lost, timeout=timeout)

    def peek(self, key: str, *, timeout: float) -> bytes | None:
        """The current value of the run's ``key`` if a session of the run lives.

        If none does, a dead run has left the key behind. Needs no session itself: nothing is written. Raises as
        ``open_session``.
        """

        async def ask() -> bytes | None:
            client = self._client()
            asking = Asking(client, self._outage)
            try:
                return await asking.ask("peek", client.peek, key, deadline=here().monotonic() + timeout)
            except TIMEOUTS:
                raise asking.problem(f"etcd could not be reached within {timeout:g} s") from None
            finally:
                await asking.drop()

        return hold_for_good().run(ask(), timeout + _MORE_S)


def create(request: Request) -> EtcdCoordination:
    """The cluster as this node sees it; nothing is sent yet. Removes user and password from the environment."""
    ACCOUNT.forget()
    return _cluster(request)


def _cluster(request: Request) -> EtcdCoordination:
    (members, security), options = request.target, request.options
    how = {"prefix": options.prefix, "outage_timeout": options.outage_timeout, "whose": request.whose}
    return EtcdCoordination(members, request.run_id, security=security, **how)


def preflight(request: Request, held: ExitStack) -> str:
    """Log in at a member that answers, and read one key."""
    from rdzv_plugins.elastic import keys
    from rdzv_plugins.elastic.observer import PATIENCE_S, with_job

    job = _cluster(request).peek(keys.JOB, timeout=PATIENCE_S)
    return f"etcd answers at {request.endpoint}, {with_job(request, 'etcd', job)}"
