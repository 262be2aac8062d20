"""A node's contact with the service: the living session, the outage while the service does not do what it should, and
what this node tells the others about itself. That is one key, written by this node alone, in order.

``Link`` opens the sessions; whoever has something to ask or to say uses the one that is here.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from rdzv_plugins.coordination import Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.insisting import Outage, known_until
from rdzv_plugins.elastic.keys import Assignment, Member, encode
from rdzv_plugins.elastic.options import domain_of
from rdzv_plugins.elastic.view import View
from rdzv_plugins.errors import ConnectionLost, EndpointLost, PluginError, RdzvError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.runtime import Runtime

logger = logging.getLogger(__name__)

_LOOK_S = 0.5


class Contact:
    """Thread-safe. Without a session, or before this node's address is known, nothing is written about it."""

    def __init__(
        self,
        me: Member,
        request: Request,
        outage_timeout: float,
        view: View,
        on_outage: Callable[[bool], object],
        runtime: Runtime,
    ) -> None:
        """After ``outage_timeout`` seconds of an outage this node gives up. ``on_outage``: see ``Outage``."""
        self.me = me
        self._saying = runtime.Lock()
        self._silent = False
        self._request, self._view, self._runtime = request, view, runtime
        self._lock = runtime.Lock()
        self.outage = Outage(request.run_id, outage_timeout, lambda: view.newest > 0, self.give_up, on_outage, runtime)
        """For how long the service has not done what this node needs."""
        self.session: Session | None = None  # the living session; None while there is none
        self.opened = 0
        """Counts the sessions that took no round over; a round joined in an earlier one goes on without this node."""
        self.problem: EndpointLost | PluginError | None = None  # the error once the service is lost for good
        self.is_closed = False  # whether this node has left: no other session follows

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

    # what this node says about itself

    def silence(self) -> None:
        """Say nothing more, in any session."""
        with self._saying:
            self._silent = True

    def change(self, **changes: Any) -> None:
        """Change it; the change is written with whatever is said next."""
        with self._saying:
            self.me = replace(self.me, **changes)

    def say(self, *, during: Session | None = None, **changes: Any) -> None:
        """Change it, and write it however long that takes. If the session ends that is enough: the next begins with it.

        ``during``: do nothing if a session other than this has begun.
        """
        with self._saying:
            if during is not None and self.session is not during:
                return
            self.me = replace(self.me, **changes)
            self._write()

    def say_cut_off(self, round_: int, reason: str) -> bool:
        """Say that its workers are cut off and need another round. False if it has already left that round."""
        with self._saying:
            if self.me.after >= round_ or self.me.done == round_:
                return False
            self.me = replace(self.me, after=round_, cut_off=round_, reason=reason)
            self._write()
            return True

    def say_kept(self, place: Assignment, known: int) -> None:
        """Tell a service without memory that it keeps its place, if it has not left that round in the meantime."""
        with self._saying:
            self.me = replace(self.me, keeps=place, known=known, probe=0, alive=0)
            if self.me.kept is None:
                self.me = replace(self.me, keeps=None)
            self._write()

    def say_once(self, timeout: float, **changes: Any) -> None:
        """Like ``say``, for at most ``timeout`` seconds: a node that leaves does not wait for a silent service."""
        asked = self._runtime.now()
        if not self._saying.acquire(timeout=max(0.0, timeout)):  # somebody else is writing it
            return
        try:
            self.me = replace(self.me, **changes)
            self._put(until=asked + timeout)
        except (TimeoutError, RdzvError) as error:
            logger.debug("could not tell the other nodes of %s: %s", ", ".join(changes), error)
        finally:
            self._saying.release()

    def _write(self) -> None:
        with contextlib.suppress(ConnectionLost):
            self._put(until=math.inf)

    def _put(self, until: float) -> None:
        session = self.session
        if session is None or not self.me.address or self._silent:
            return
        item = {keys.MEMBERS + self.me.node_id: encode(self.me)}
        self.outage.insist(session, lambda timeout: session.put(item, ephemeral=True, timeout=timeout), until=until)


def new_member(request: Request, runtime: Runtime, *, serves: bool) -> Member:
    """Describe this process before anybody has seen its address. ``serves``: it serves the endpoint."""
    domain = domain_of(request)
    return Member(
        node_id=runtime.uuid4().hex,
        host=runtime.gethostname(),
        machine=runtime.machine_id(),
        pid=runtime.getpid(),
        address="",
        public="",
        nproc=request.nproc_per_node,
        node_rank=request.node_rank,
        rank_moves=bool(domain) and request.node_rank is not None and request.rank_moves,
        domain=domain,
        serves=serves,
    )
