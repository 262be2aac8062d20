"""``EtcdCoordination``: the ``CoordinationBackend`` of backend ``etcd``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rdzv_plugins.backends.etcd.client import EtcdClient
from rdzv_plugins.backends.etcd.cluster import Cluster, Whose
from rdzv_plugins.backends.etcd.security import EtcdSecurity
from rdzv_plugins.backends.etcd.space import Space
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.kit.coordination import Coordination
from rdzv_plugins.kit.loop import here, hold_for_good
from rdzv_plugins.kit.session import ClientSession

_MORE_S = 2.0
"""Seconds for what is asked once a member answers, however late that is."""


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
        security: EtcdSecurity | None = None,
        prefix: str = "/rdzv-plugins",
        outage_timeout: float = 60.0,
        whose: Whose = None,
    ) -> None:
        self._endpoints, self._security = tuple(endpoints), security or EtcdSecurity()
        self._space, self._whose, self._outage = Space(prefix, run_id), whose, outage_timeout
        super().__init__("etcd", lambda: ClientSession(self._client(), outage_timeout))

    def _client(self) -> EtcdClient:
        cluster = Cluster(self._endpoints, self._security, self._space.path, whose=self._whose)
        return EtcdClient(cluster, self._space)

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
        return hold_for_good().run(self._peek(key, timeout), timeout + _MORE_S)

    async def _peek(self, key: str, timeout: float) -> bytes | None:
        client = self._client()
        work = ClientSession(client, self._outage)
        try:
            return await work.ask("peek", client.peek, key, deadline=here().monotonic() + timeout)
        except (TimeoutError, asyncio.TimeoutError):
            raise work.problem(f"etcd could not be reached within {timeout:g} s") from None
        finally:
            await work.drop()
