"""What a node tells the others about itself: one key, written by this node alone, in order."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from msgspec.structs import replace

from rdzv_plugins.coordination import Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.contact import Contact
from rdzv_plugins.elastic.keys import Assignment, Member, encode
from rdzv_plugins.elastic.options import domain_of
from rdzv_plugins.errors import ConnectionLost, RdzvError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.runtime import Runtime

logger = logging.getLogger(__name__)


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


class Myself:
    """This node's ``Member``. Thread-safe. Without a session, or before its address is known, nothing is written."""

    def __init__(self, me: Member, contact: Contact, runtime: Runtime) -> None:
        self.me, self._contact, self._runtime = me, contact, runtime
        self._saying = self._runtime.Lock()
        self._silent = False

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
            if during is not None and self._contact.session is not during:
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
            session = self._contact.session
            if session is not None and self.me.address and not self._silent:
                self._contact.outage.insist(
                    session,
                    lambda timeout: session.put(self._item(), ephemeral=True, timeout=timeout),
                    until=asked + timeout,
                )
        except (TimeoutError, RdzvError) as error:
            logger.debug("could not tell the other nodes of %s: %s", ", ".join(changes), error)
        finally:
            self._saying.release()

    def _write(self) -> None:
        session = self._contact.session
        if session is None or not self.me.address or self._silent:
            return
        with contextlib.suppress(ConnectionLost):
            self._contact.outage.insist(
                session, lambda timeout: session.put(self._item(), ephemeral=True, timeout=timeout)
            )

    def _item(self) -> dict[str, bytes]:
        return {keys.MEMBERS + self.me.node_id: encode(self.me)}
