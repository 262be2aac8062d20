"""``RedisCoordination``: the ``CoordinationBackend`` of backend ``redis``."""

from __future__ import annotations

from rdzv_plugins.kit import Coordination, Security

from rdzv_redis.server import Server
from rdzv_redis.session import RedisSession
from rdzv_redis.space import Space
from rdzv_redis.target import Target


class RedisCoordination(Coordination):
    """Coordination of run ``run_id`` by the Redis at ``target``. Thread-safe.

    ``prefix``: the names of all its keys begin with it. ``outage_timeout``: seconds for which a session goes on while
    Redis does not answer (its time to live, if that is more); then it is lost.
    """

    def __init__(
        self,
        target: Target,
        run_id: str,
        *,
        security: Security | None = None,
        prefix: str = "rdzv-plugins",
        outage_timeout: float = 60.0,
    ) -> None:
        self.security, self.space = security or Security(), Space(prefix, run_id)
        super().__init__(
            "redis", lambda: RedisSession(Server(target, self.security, prefix), self.space, outage_timeout)
        )
