"""The members of an etcd cluster, and the connection to one of them that a session uses. On the loop's thread only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from rdzv_plugins.backends.etcd.api import grpc
from rdzv_plugins.backends.etcd.connection import (
    LATE_S,
    Connection,
    Dropped,
    Stream,
    Whose,
    nobody_knows,
    open_connection,
)
from rdzv_plugins.backends.etcd.diagnosis import SILENT
from rdzv_plugins.backends.etcd.refusals import (
    NO_LEADER,
    Verdict,
    denied,
    is_wrong_password,
    reason_of,
    refusal,
    verdict,
)
from rdzv_plugins.backends.etcd.security import EtcdSecurity
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, RendezvousFailed
from rdzv_plugins.kit.loop import here, looked_at
from rdzv_plugins.kit.reasons import Reason, Unusable
from rdzv_plugins.timing import growing

logger = logging.getLogger(__name__)

_STAGGER_S = 0.3
"""After this many seconds a member that has not answered is no longer waited for: the next is asked as well."""
_ATTEMPT_S = 3.0
"""A request that is not answered within this many seconds is repeated once.

etcd loses requests while it has no leader. If the second attempt, which may take twice as long, is not answered either,
the member is left.
"""
_COMPARE_S = 0.5
"""How many seconds a start may be delayed by checking that all members belong to one cluster."""
_LOGIN_S = 60.0
_LOGINS = 3
"""The most logins during one request: users may be changed while it is made."""
_BUSY_S = 0.5
_LOOK_S = 0.5
"""Seconds between two looks at a file that is about to be written."""
_CLOSED = "the session has been closed"
_SHORT_S = 1.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0

_SILENT_SINCE = Reason(f"{NO_LEADER}; it has not answered since it said so")
_FOREIGN = Reason(
    "it belongs to another etcd cluster than the member that was used before",
    "--rdzv-endpoint has to name members of one cluster.",
    final=True,
)


class Cluster:
    """An etcd cluster, of which one member is used at a time, and another when that fails.

    ``path`` is for messages. ``whose`` tells what listens where no member answers, and is asked until a member has been
    of use.
    """

    def __init__(
        self, endpoints: Sequence[Endpoint], security: EtcdSecurity, path: str, whose: Whose = nobody_knows
    ) -> None:
        self._endpoints, self._security, self.path, self._whose = tuple(endpoints), security, path, whose
        self.name = ",".join(map(str, endpoints))
        """The name used for the cluster in messages."""
        self.has_user = bool(security.user)
        """Whether it logs in, so that its tokens may expire."""
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._reasons: dict[Endpoint, Reason] = {}
        self._id = 0
        self._pause = 0.0
        self.closed = False
        """Whether ``close`` has been called."""
        self.proven = False
        """Whether it has been of use once: what was right then is expected to become right again."""

    def denied(self, reason: str) -> RendezvousFailed:
        """The error for a watch that was cancelled for ``reason`` as soon as it was created."""
        if "permission" in reason:
            return denied(self.path, self._security)
        return RendezvousFailed(f"etcd refuses to watch {self.path}: {reason or 'it does not say why'}")

    def why(self) -> str:
        """What is wrong with each member."""
        tried = ((endpoint, self._reasons.get(endpoint)) for endpoint in self._endpoints)
        return "; ".join(f"{endpoint}: {reason.text if reason else 'no answer yet'}" for endpoint, reason in tried)

    def reason(self) -> Reason:
        """What is wrong with each member, and what the user can do."""
        remedies = dict.fromkeys(reason.remedy for reason in self._reasons.values() if reason.remedy)
        return Reason(self.why(), " ".join(remedies))

    def problem(self, lead: str) -> EndpointUnreachable:
        """An error with ``lead`` and what is wrong with each member."""
        return self.reason().error(lead, "etcd")

    async def connection(self, timeout: float) -> Connection:
        """The connection in use, or a new one.

        Raises ``TimeoutError``; ``EndpointUnreachable`` if waiting is pointless; ``Dropped`` after ``close``.
        """
        if self._connection is not None and not self._connection.dropped:
            return self._connection
        if self.closed:
            raise Dropped(_CLOSED)
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(looked_at)
        connecting = self._connecting
        done, _ = await asyncio.wait({connecting}, timeout=max(0.0, timeout))
        if not done:
            raise TimeoutError(self.why())
        if connecting.cancelled():
            raise Dropped(_CLOSED)
        return connecting.result()

    async def leave(self, connection: Connection, reason: str) -> None:
        if not connection.dropped:
            self._reasons[connection.endpoint] = Reason(reason)
            short = here().monotonic() - connection.opened < _SHORT_S  # it could be reached, and was of no use
            self._pause = min(max(self._pause * 1.5, _FIRST_PAUSE_S), _LONGEST_PAUSE_S) if short else 0.0
            logger.debug("etcd at %s is left: %s", connection.endpoint, reason)
        await connection.drop(reason)

    async def call(
        self, what: str, method: str, request: Any, deadline: float, *, writes: bool = False
    ) -> tuple[Any, int]:
        """The answer to a repeatable request, from another member if necessary, and how often it was asked.

        ``method`` is one such as "KV/Txn", ``what`` is for messages. ``writes``: it needs space.

        ``deadline`` is in the monotonic clock's seconds. Raises ``TimeoutError`` with the reasons, which may be that
        etcd does not do it now; the errors of ``refusal``; and ``Dropped`` after ``close``.
        """
        asked, logins, limit, refused = 0, 0, _ATTEMPT_S, None
        while deadline - here().monotonic() > 0:
            try:
                connection = await self.connection(deadline - here().monotonic())
                await self._log_in(connection, deadline)
            except TimeoutError:
                break
            except Dropped:
                if self.closed:
                    raise
                continue
            token, start = connection.token, here().monotonic()
            given = min(limit, max(0.001, deadline - start))
            try:
                asked += 1
                answer = await connection.unary(method, request, given)
                if await self._is_ours(connection, answer):
                    if writes:
                        self._reasons.pop(connection.endpoint, None)
                    return answer, asked
            except Dropped:
                if self.closed:
                    raise
            except grpc.aio.AioRpcError as error:
                decided = verdict(error, has_user=self.has_user)
                if decided is None or (decided is Verdict.LOG_IN and logins == _LOGINS):
                    raise refusal(error, what, self.path, self._security) from None
                if decided is Verdict.LATER:
                    refused = refusal(error, what, self.path, self._security)
                    self._reasons[connection.endpoint] = Reason(str(refused), refused.remedy)
                    await self._pause_before(deadline, _BUSY_S)
                elif decided is Verdict.LOG_IN:
                    logins += 1
                    connection.forget_login(token)
                elif error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and (
                    limit == _ATTEMPT_S or here().monotonic() - start > given + LATE_S
                ):
                    limit *= 2
                elif deadline - here().monotonic() > 0:  # otherwise it was we who ran out of time
                    await self.leave(connection, reason_of(error))
        if refused is not None:
            raise TimeoutError(f"{what}: {refused} ({refused.remedy.rstrip('.')})")
        raise TimeoutError(f"{what}: etcd has not answered in time ({self.why()})")

    async def _pause_before(self, deadline: float, seconds: float) -> None:
        """Pause, so that thousands of nodes do not come back at once."""
        await asyncio.sleep(min(seconds * here().random.uniform(0.5, 1.5), max(0.0, deadline - here().monotonic())))

    async def _log_in(self, connection: Connection, deadline: float) -> None:
        """Log in. Raises ``TimeoutError``, ``Dropped`` and the errors of ``refusal``.

        If a password that was once right no longer is, it was changed: the file that has it is about to change, too.
        """
        while True:
            try:
                await connection.logged_in(deadline - here().monotonic())
                return
            except TimeoutError:
                self._reasons[connection.endpoint] = Reason("it has not answered the login yet")
                raise
            except grpc.aio.AioRpcError as error:
                if verdict(error, has_user=False) is not None:
                    await self.leave(connection, reason_of(error))
                    raise Dropped(connection.dropped) from None
                refused = refusal(error, "the login", self.path, self._security)
                if not (self.proven and self._security.credentials and is_wrong_password(error)):
                    raise refused from None
                self._reasons[connection.endpoint] = Reason(str(refused), refused.remedy)
                if here().monotonic() >= deadline:
                    raise TimeoutError(str(refused)) from None
                await self._pause_before(deadline, _LOOK_S)

    async def _is_ours(self, connection: Connection, answer: Any) -> bool:
        """Whether the answer comes from a member of the cluster that was used before."""
        connection.cluster_id = answer.header.cluster_id or connection.cluster_id
        if self._is_of_another(connection):
            await self.leave(connection, _FOREIGN.text)
            return False
        self._id = self._id or connection.cluster_id
        return True

    async def stream(self, connection: Connection, method: str) -> Stream:
        """A stream for which a user has logged in. Raises ``TROUBLE``, and the errors of ``refusal``."""
        await self._log_in(connection, here().monotonic() + _LOGIN_S)
        return connection.stream(method)

    async def close(self) -> None:
        self.closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._connecting = None
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.drop(_CLOSED)

    async def _connect(self) -> Connection:
        """Try all members until one can be used."""
        pauses = growing(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, random=here().random)
        await asyncio.sleep(self._pause)
        while True:
            found = await self._any_member()
            if found is not None:
                if not self._id and found.cluster_id:
                    self._id = found.cluster_id
                    await self._compare(found)
                self._connection = found
                self._reasons.clear()
                return found
            reasons = [self._reasons.get(endpoint) for endpoint in self._endpoints]
            if all(reason and reason.final for reason in reasons) and not self.proven:
                raise self.problem(f"etcd at {self.name} cannot be used")
            await asyncio.sleep(next(pauses))

    async def _any_member(self) -> Connection | None:
        """The first usable member, in random order so that the nodes spread over the members."""
        found: list[Connection] = []
        started: list[asyncio.Task[None]] = []
        trying: set[asyncio.Task[None]] = set()
        try:
            for endpoint in here().random.sample(self._endpoints, len(self._endpoints)):
                started.append(asyncio.get_running_loop().create_task(self._try(endpoint, found)))
                _, trying = await asyncio.wait(
                    {*trying, started[-1]}, timeout=_STAGGER_S, return_when=asyncio.FIRST_COMPLETED
                )
                if found:
                    break
            while trying and not found:
                _, trying = await asyncio.wait(trying, return_when=asyncio.FIRST_COMPLETED)
            return found[0] if found else None
        except asyncio.CancelledError:
            await _drop(found)
            raise
        finally:
            for task in started:
                task.cancel()
            await _drop(found[1:])

    async def _try(self, endpoint: Endpoint, found: list[Connection]) -> None:
        try:
            connection = await open_connection(endpoint, self._security, nobody_knows if self.proven else self._whose)
        except Unusable as error:
            lost = error.reason == SILENT and self._reasons.get(endpoint) in (Reason(NO_LEADER), _SILENT_SINCE)
            self._reasons[endpoint] = _SILENT_SINCE if lost else error.reason
            return
        except Exception as error:  # such as a certificate's file that no longer exists
            self._reasons[endpoint] = Reason(str(error) or repr(error), getattr(error, "remedy", ""))
            return
        if self._is_of_another(connection):
            self._reasons[endpoint] = _FOREIGN
            await connection.drop(_FOREIGN.text)
            return
        found.append(connection)

    def _is_of_another(self, connection: Connection) -> bool:
        return bool(self._id and connection.cluster_id) and connection.cluster_id != self._id

    async def _compare(self, used: Connection) -> None:
        """Compare clusters: nodes that wait for each other in different ones would never notice.

        Raises ``EndpointUnreachable``.
        """
        others = [endpoint for endpoint in self._endpoints if endpoint != used.endpoint]
        checks = [asyncio.get_running_loop().create_task(self._is_foreign(endpoint)) for endpoint in others]
        if not checks:
            return
        done, late = await asyncio.wait(checks, timeout=_COMPARE_S)
        for task in late:
            task.cancel()
        foreign = [endpoint for endpoint, task in zip(others, checks, strict=True) if task in done and task.result()]
        if foreign:
            await used.drop("of another cluster")
            raise EndpointUnreachable(
                f"{', '.join(map(str, foreign))} and {used.endpoint} are members of different etcd clusters",
                remedy="--rdzv-endpoint has to name members of one cluster, the same on every node.",
            )

    async def _is_foreign(self, endpoint: Endpoint) -> bool:
        try:
            connection = await open_connection(endpoint, self._security)
        except Unusable:  # its turn comes when it is needed
            return False
        await connection.drop("not needed")
        return self._is_of_another(connection)


async def _drop(connections: Sequence[Connection]) -> None:
    for connection in connections:
        await connection.drop("not needed")
