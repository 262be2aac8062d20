"""The members of an etcd cluster, and the connection to one of them that a session uses. On the loop's thread only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from rdzv_plugins.backends.etcd.api import grpc
from rdzv_plugins.backends.etcd.connection import (
    TROUBLE,
    Connection,
    Whose,
    nobody_knows,
    open_connection,
    trouble,
)
from rdzv_plugins.backends.etcd.diagnosis import SILENT
from rdzv_plugins.backends.etcd.refusals import NO_LEADER, is_wrong_password, refusal, verdict
from rdzv_plugins.backends.etcd.security import EtcdSecurity
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.kit.loop import here, looked_at
from rdzv_plugins.kit.reasons import Reason, Unusable
from rdzv_plugins.timing import growing

logger = logging.getLogger(__name__)

_STAGGER_S = 0.3
"""After this many seconds a member that has not answered is no longer waited for: the next is asked as well."""
_COMPARE_S = 0.5
"""How many seconds a start may be delayed by checking that all members belong to one cluster."""
_LOGIN_S = 60.0
_LOOK_S = 0.5
"""Seconds between two looks at a file that is about to be written."""
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
        self._endpoints, self.security, self.path, self._whose = tuple(endpoints), security, path, whose
        self.name = ",".join(map(str, endpoints))
        """The name used for the cluster in messages."""
        self._connecting: asyncio.Task[Connection] | None = None
        self._reasons: dict[Endpoint, Reason] = {}
        self._id = 0
        self.proven = False
        """Whether it has been of use once: what was right then is expected to become right again."""

    def why(self) -> str:
        """What is wrong with each member."""
        tried = ((endpoint, self._reasons.get(endpoint)) for endpoint in self._endpoints)
        return "; ".join(f"{endpoint}: {reason.text if reason else 'no answer yet'}" for endpoint, reason in tried)

    def reason(self) -> Reason:
        """What is wrong with each member, and what the user can do."""
        remedies = dict.fromkeys(reason.remedy for reason in self._reasons.values() if reason.remedy)
        return Reason(self.why(), " ".join(remedies))

    def note(self, endpoint: Endpoint, reason: Reason) -> None:
        """Say what is wrong with that member now."""
        self._reasons[endpoint] = reason

    async def connect(self) -> Connection:
        """A connection to a member that can be used, with a user who has logged in, if there is one.

        The members are tried until one can be used, also when whoever waits for it gives up: it is for the next one.
        Raises ``EndpointUnreachable`` if waiting is pointless.
        """
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(looked_at)
        await asyncio.wait({self._connecting})
        connecting, self._connecting = self._connecting, None
        return connecting.result()

    async def close(self) -> None:
        """Try no longer."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
            if not self._connecting.cancelled() and self._connecting.exception() is None:
                await self._connecting.result().drop()
            self._connecting = None

    def is_ours(self, connection: Connection, answer: Any) -> bool:
        """Whether the answer comes from a member of the cluster that was used before."""
        connection.cluster_id = answer.header.cluster_id or connection.cluster_id
        self._id = self._id or connection.cluster_id
        if self._is_of_another(connection):
            self.note(connection.endpoint, Reason(_FOREIGN.text))
        return not self._is_of_another(connection)

    async def log_in(self, connection: Connection) -> None:
        """Log in. Raises ``EOFError`` if the member cannot do that now, and the errors of ``refusal``.

        If a password that was once right no longer is, it was changed: the file that has it is about to change, too.
        Then it raises ``Unusable``.
        """
        try:
            await connection.logged_in(_LOGIN_S)
        except TROUBLE as error:
            if not isinstance(error, grpc.aio.AioRpcError) or verdict(error, has_user=False) is not None:
                raise EOFError(trouble(error)) from None
            refused = refusal(error, "the login", self.path, self.security)
            if self.proven and self.security.credentials and is_wrong_password(error):
                raise Unusable(Reason(str(refused), refused.remedy)) from None
            raise refused from None

    async def _connect(self) -> Connection:
        """Try all members until one can be used."""
        pauses = growing(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, random=here().random)
        while True:
            found = await self._any_member()
            if found is not None:
                try:
                    if not self._id and found.cluster_id:
                        self._id = found.cluster_id
                        await self._compare(found)
                    await self._wait_for_login(found)
                    self._reasons.clear()
                    return found
                except EOFError as error:
                    self.note(found.endpoint, Reason(str(error)))
                    await found.drop()
                except BaseException:
                    await found.drop()
                    raise
            reasons = [self._reasons.get(endpoint) for endpoint in self._endpoints]
            if all(reason and reason.final for reason in reasons) and not self.proven:
                raise self.reason().error(f"etcd at {self.name} cannot be used", "etcd")
            await asyncio.sleep(next(pauses))

    async def _wait_for_login(self, connection: Connection) -> None:
        self.note(connection.endpoint, Reason("it has not answered the login yet"))
        while True:
            try:
                await self.log_in(connection)
                return
            except Unusable as error:
                self.note(connection.endpoint, error.reason)
            await asyncio.sleep(_LOOK_S * here().random.uniform(0.5, 1.5))  # thousands must not come back at once

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
            connection = await open_connection(endpoint, self.security, nobody_knows if self.proven else self._whose)
        except Unusable as error:
            lost = error.reason == SILENT and self._reasons.get(endpoint) in (Reason(NO_LEADER), _SILENT_SINCE)
            self._reasons[endpoint] = _SILENT_SINCE if lost else error.reason
            return
        except Exception as error:  # such as a certificate's file that no longer exists
            self._reasons[endpoint] = Reason(str(error) or repr(error), getattr(error, "remedy", ""))
            return
        if self._is_of_another(connection):
            self._reasons[endpoint] = _FOREIGN
            await connection.drop()
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
            raise EndpointUnreachable(
                f"{', '.join(map(str, foreign))} and {used.endpoint} are members of different etcd clusters",
                remedy="--rdzv-endpoint has to name members of one cluster, the same on every node.",
            )

    async def _is_foreign(self, endpoint: Endpoint) -> bool:
        try:
            connection = await open_connection(endpoint, self.security)
        except Unusable:  # its turn comes when it is needed
            return False
        await connection.drop()
        return self._is_of_another(connection)


async def _drop(connections: Sequence[Connection]) -> None:
    for connection in connections:
        await connection.drop()
