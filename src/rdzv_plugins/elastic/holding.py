"""How long a node's round is sure to hold: as long as the session it was joined with, unless the round is over."""

from __future__ import annotations

import math
from collections.abc import Callable

from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.elastic.joining import Joining
from rdzv_plugins.elastic.link import Link
from rdzv_plugins.elastic.view import View
from rdzv_plugins.errors import ConnectionLost, RdzvError
from rdzv_plugins.runtime import Runtime

_ASK_S = 1.0
_AGAIN_S = 0.05
_LONG_AGO = 1e-9


class RoundHolding:
    """A ``Holding``. Thread-safe; one thread waits for news."""

    def __init__(self, link: Link, view: View, joining: Joining, ttl: float, runtime: Runtime) -> None:
        self._link, self._view, self._joining, self._ttl = link, view, joining, ttl
        self._runtime = runtime
        self._call: Callable[[], None] | None = None
        self._seen = view.version

    @property
    def ttl(self) -> float:
        return self._ttl

    def until(self) -> float:
        session = self._link.session
        if self._joining.is_over or self.ended():
            return 0.0
        # its connection is broken: the service has ended it, is gone itself, or has come back without memory
        if session is None or self._joining.is_unconfirmed:
            return _LONG_AGO
        return float(getattr(session, "known_until", math.inf))

    def ended(self) -> bool:
        return self._link.opened != self._joining.opened or self._link.problem is not None

    def sure(self) -> bool:
        session = self._link.session
        sure = session is not None and not self.ended() and not self._joining.is_unconfirmed
        return sure and self._runtime.now() < getattr(session, "known_until", math.inf)

    def confirm(self, timeout: float) -> bool:
        session = self._link.session
        if session is None:
            return False
        try:
            session.list(keys.ROUND, timeout=min(timeout, patience(session)))
        except (ConnectionLost, TimeoutError):
            return False
        except RdzvError:  # it has answered
            pass
        return True

    def session_lives(self) -> bool:
        """Wait until this is certain: True if the session lives, False once it has ended.

        For use after a standstill.
        """
        while not self.ended():
            session, seen = self._link.session, self._view.version
            known_until = getattr(session, "known_until", None)
            if self._joining.is_unconfirmed:
                known_until = _LONG_AGO
            if self._runtime.now() < known_until if known_until is not None else self.confirm(_ASK_S):
                return True
            self._view.wait(seen, _AGAIN_S)
        return False

    def wait_for_news(self, timeout: float) -> None:
        self._seen = self._view.wait(self._seen, timeout)

    def on_news(self, call: Callable[[], None] | None) -> None:
        self._call = call

    def tell(self) -> None:
        """Report that there is news. Called on the thread that brought it."""
        call = self._call
        if call is not None:
            call()
