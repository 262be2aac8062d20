"""A node's contact with the service: the living session, and the outage while the service does not do what it should.

``Link`` opens the sessions; whoever has something to ask or to say uses the one that is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rdzv_plugins.coordination import Session
from rdzv_plugins.elastic.insisting import Outage, known_until
from rdzv_plugins.elastic.view import View
from rdzv_plugins.errors import ConnectionLost, EndpointLost, PluginError, RdzvError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.runtime import Runtime

_LOOK_S = 0.5


class Contact:
    """Thread-safe."""

    def __init__(
        self, request: Request, outage_timeout: float, view: View, on_outage: Callable[[bool], object], runtime: Runtime
    ) -> None:
        """After ``outage_timeout`` seconds of an outage this node gives up. ``on_outage``: see ``Outage``."""
        self._request, self._view, self._runtime = request, view, runtime
        self._lock = runtime.Lock()
        self.outage = Outage(request.run_id, outage_timeout, lambda: view.newest > 0, self.give_up, on_outage, runtime)
        """For how long the service has not done what this node needs."""
        self.session: Session | None = None
        """The living session; None while there is none."""
        self.opened = 0
        """How many sessions there have been, except those that took a round over from the one before.

        A round that was joined in an earlier one goes on without this node.
        """
        self.problem: EndpointLost | PluginError | None = None
        """The error once the service is lost for good."""
        self.is_closed = False
        """Whether this node has left: no other session follows."""

    @property
    def is_out(self) -> bool:
        """Whether the service has not answered for a session's life, or not done what it should: it is waited for."""
        session = self.session
        return session is None or self.outage.lasts or known_until(session, math.inf) < self._runtime.now()

    def wait_session(self) -> Session | None:
        """The session; waits while another is opened. None once the service is lost for good or this is closed."""
        while not self.is_closed and self.problem is None:
            seen, session = self._view.version, self.session
            if session is not None:
                return session
            self._view.wait(seen, _LOOK_S)
        return None

    def begin(self, session: Session, lost: Sequence[ConnectionLost], *, keeps_round: bool) -> None:
        """``session`` was opened; raises the error by which it was ``lost`` already. Closes it once this is closed."""
        with self._lock:
            if lost:
                raise lost[0]
            self.opened += not keeps_round
            self.session = None if self.is_closed else session
        if self.is_closed:
            session.close()

    def end(self, error: ConnectionLost, lost: list[ConnectionLost], keep: Callable[[Session], None]) -> bool:
        """A session has ended by ``error``: False if it was not begun yet, so that who opens it finds that in ``lost``.

        Otherwise ``keep`` is called with it before anybody knows that there is none.
        """
        with self._lock:
            lost.append(error)
            session = self.session
            if self.is_closed or session is None:
                return False
            keep(session)
            self.session = None
        return True

    def close(self) -> None:
        """End the session; no other follows."""
        with self._lock:
            self.is_closed = True
            session, self.session = self.session, None
        if session is not None:
            session.close()

    def give_up(self, error: Exception, then: Exception | None = None) -> None:
        """The service is lost for good: by ``error``, and because of ``then`` nothing has become of another session."""
        if self.problem is not None:
            return
        if isinstance(error.__cause__, PluginError):  # it says all there is to say
            self.problem = error.__cause__
            self._view.wake()
            return
        text = f"lost the rendezvous of run {self._request.run_id!r}{self._request.at_endpoint}: {error}"
        remedies = [each.remedy for each in (then, error) if isinstance(each, RdzvError) and each.remedy]
        self.problem = EndpointLost(
            text + (f" (then: {then})" if then is not None else ""),
            remedy=next(iter(remedies), "")
            or "See the output of the process that serves it, and the network on the way there.",
        )
        self._view.wake()
