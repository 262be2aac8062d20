"""Sessions of nodes with a server of ours, as one process of a benchmark holds them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from rdzv_launcher.bench.method.turns import DidNotFinish
from rdzv_launcher.bench.processes.closed import RUN, of_client
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import RdzvError

_TTL_S = 600.0
"""Long enough that no sign of life falls into what is measured."""
_SMALL_BYTES = 64


class Sessions:
    """The role ``sessions``: uses the client that nodes have, with one request in flight at a time."""

    def __init__(self, port: int, conf: dict[str, str]) -> None:
        """``conf`` comes from ``closed.conf_of``, or is empty."""
        from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination

        token, tls = of_client(conf)
        server = Endpoint("127.0.0.1", port)
        if tls is not None:
            tls.context()  # as a node has it when it dials
        self._service = NativeCoordination(server, RUN, name=RUN, who="the server", token=token, tls=tls)
        self._sessions: list[Any] = []
        self.ready: dict[str, Any] = {}

    def answer(self, phase: str, limit_s: float, **arguments: Any) -> dict[str, Any]:
        """Go through ``open`` or ``ask``; answer with figures, or with why they are ``unfinished``."""
        timed = _Timed(phase, limit_s)
        try:
            getattr(self, f"_{phase}")(timed, **arguments)
        except (DidNotFinish, TimeoutError) as error:
            return {"unfinished": str(error)}
        return timed.figures()

    def _open(self, timed: _Timed, sessions: int) -> None:
        """Open this many more, which stay open."""
        opening = partial(self._service.open_session, _TTL_S, on_lost=lambda lost: None)
        self._sessions += [timed(opening) for _ in range(sessions)]

    def _ask(self, timed: _Timed, prefix: str, rounds: int) -> None:
        """Each session puts a small value and reads it back, in each round. Raises ``RdzvError`` for another value."""
        for turn, (number, session) in product(range(rounds), enumerate(self._sessions)):
            key, value = f"{prefix}/{number}/small", turn.to_bytes(_SMALL_BYTES, "little")
            timed(partial(session.put, {key: value}))
            found, _ = timed(partial(session.list, key))
            if [each.value for each in found] != [value]:
                raise RdzvError(f"{key} holds {found}, and not what was put there")


class _Timed:
    """Makes calls, and records how long each took."""

    def __init__(self, phase: str, limit_s: float) -> None:
        self._phase, self._limit_s = phase, limit_s
        self._end = time.monotonic() + limit_s
        self._taken: list[float] = []

    def __call__(self, ask: Callable[..., Any]) -> Any:
        """Call ``ask`` with a ``timeout``; returns its result. Raises ``DidNotFinish`` when the time is up."""
        began = time.monotonic()
        if began >= self._end:
            raise DidNotFinish(f"{self._phase}: {len(self._taken)} requests were done within {self._limit_s:g} s")
        answer = ask(timeout=self._end - began)
        self._taken.append(time.monotonic() - began)
        return answer

    def figures(self) -> dict[str, Any]:
        """Total seconds, the number of calls, and the time of a call, in microseconds."""
        ordered = sorted(self._taken)
        median, late = (ordered[len(ordered) * percent // 100] * 1e6 for percent in (50, 99))
        return {"seconds": sum(ordered), "requests": len(ordered), "p50_us": median, "p99_us": late}
