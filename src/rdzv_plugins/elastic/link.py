"""A node's session with the coordination service, and what each new one involves: watches, settings, leading."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
from typing import TYPE_CHECKING, Any

from rdzv_plugins.coordination import CoordinationBackend, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.election import Election
from rdzv_plugins.elastic.insisting import LEAST_S
from rdzv_plugins.elastic.keys import PROTOCOL, NodeNotice, encode
from rdzv_plugins.elastic.options import ElasticOptions, places_of
from rdzv_plugins.elastic.own_round import NodeContext
from rdzv_plugins.errors import ConnectionLost, PluginError, RdzvError, SettingsDiffer
from rdzv_plugins.interfaces import Request
from rdzv_plugins.job_token import token_of
from rdzv_plugins.rounds.settings_check import COMMAND, WAY, compare, digest, outline, refusal, signed, wanted
from rdzv_plugins.runtime import SYSTEM, Runtime

if TYPE_CHECKING:
    from rdzv_plugins.elastic.failover import Carrying

logger = logging.getLogger(__name__)

_AGAIN_S, _LONGEST_PAUSE_S = 0.5, 2.0
_ONE_REQUEST_S = 30.0
"""A session that is being opened waits no longer for one answer, which may be lost: it is opened anew then."""


class Link:
    """Opens a session, and another when that is lost, in the background. Thread-safe."""

    def __init__(
        self,
        backend: CoordinationBackend,
        node: NodeContext,
        election: Election,
        carrying: Carrying | None = None,
    ) -> None:
        """``carrying``: with several endpoints, what is taken from one to another."""
        request, options = self._request, self._options = node.request, node.options
        self._view, self._contact, self._runtime = node.view, node.contact, node.runtime
        self._backend, self._round, self._election, self._carrying = backend, node.round, election, carrying
        self._settings = settings_of(request, backend.name, options, node.contact.me.host, node.runtime)
        self._was_out_since = self._recovered_at = -math.inf  # until a lost session was last followed by another

    def open(self, timeout: float) -> None:
        """Reach the service. Raises ``EndpointUnreachable``, ``RunIdMismatch`` or ``SettingsDiffer``."""
        deadline, left = self._runtime.monotonic() + timeout, timeout
        while True:
            try:
                return self._connect(left)
            except (ConnectionLost, TimeoutError) as error:
                fault = error.__cause__
                if isinstance(fault, PluginError):  # no other session would be better
                    raise fault from fault.__cause__
                # as soon as it was opened: either this process or the service has stood still
                if self._runtime.monotonic() >= deadline:
                    raise error if isinstance(error, ConnectionLost) else ConnectionLost(str(error)) from None
                logger.warning("run %s: %s; trying again", self._request.run_id, error)
                self._runtime.sleep(_AGAIN_S)
                left = round(max(0.0, deadline - self._runtime.monotonic()), 1)  # it appears in messages

    def close(self) -> None:
        """End the session, and the service if it is part of this process."""
        self._contact.close()
        self._election.close()
        self._backend.close()
        self._view.wake()

    def _connect(self, timeout: float) -> None:
        """Open a session and say in it what each has to say. Takes ``timeout`` seconds at most, and a few more."""
        deadline = self._runtime.now() + timeout

        def left() -> float:
            return max(LEAST_S, min(_ONE_REQUEST_S, deadline - self._runtime.now()))

        lost: list[ConnectionLost] = []  # before it is ours
        session = self._backend.open_session(
            self._options.ttl, on_lost=lambda error: self._on_lost(error, lost), timeout=timeout
        )
        try:
            tell = self._view.begin()
            session.watch(keys.ALL, tell, timeout=left())
            session.watch(keys.NODES + self._contact.me.node_id, tell, timeout=left())
            written, job = session.create(keys.JOB, json.dumps(self._settings).encode(), timeout=left())
            if not written:
                self._compare(session, job.value, left())
            if self._carrying is not None:
                self._carrying.arrive(self._election.moved)
                self._contact.change(led=self._election.led)
            self._contact.change(serves=self._backend.hosts_service)
            kept = self._round.carry_over(session, left())
        except BaseException:
            session.close()
            raise
        self._contact.begin(session, lost, keeps_round=kept)
        if kept:
            self._round.say_kept()
        self._view.wake()

    def _compare(self, session: Session, job: bytes, timeout: float) -> None:
        """Raise ``SettingsDiffer``, and tell those who wait for this node that it has come and is leaving."""
        try:
            compare(self._settings, job, self._request.endpoint)
        except SettingsDiffer as error:
            notice = NodeNotice(refusal(self._settings, error))
            with contextlib.suppress(RdzvError, TimeoutError):  # its own message says so, too
                session.put({keys.NOTICE: encode(notice)}, timeout=timeout)
            raise

    def _on_lost(self, error: ConnectionLost, lost: list[ConnectionLost]) -> None:
        """Handle a lost session, on a thread of the backend. Anyone who is opening one is told by an error."""
        if not self._contact.end(error, lost, self._round.session_lost):
            return
        self._runtime.Thread(target=self._recover, args=(error,), name="rdzv-reconnect").start()
        self._view.wake()

    def _recover(self, lost: ConnectionLost) -> None:
        """Open another session; workers go on meanwhile. A service that is not back within an outage's time is lost.

        Whatever it says meanwhile: it may be about to be put right. Only a job that has not begun takes that for final.
        """
        if isinstance(lost.__cause__, PluginError) and not self._view.newest:
            self._contact.give_up(lost)
            return
        since = self._runtime.now() if lost.silent_since is None else lost.silent_since
        # it opens sessions, and keeps none alive: that is one outage, or this would go on for ever
        again = since <= self._recovered_at and self._carrying is None
        if again:
            since = self._was_out_since
        elif lost.silent and lost.silent_since is None and self._carrying is None:  # for all of that time
            since = -math.inf
        self._contact.outage.begin(since)
        left, pause = self._contact.outage.left, _AGAIN_S
        if again and not left:
            self._contact.give_up(lost)
            return
        logger.warning(
            "run %s: %s; trying to reach it again for %.0f s at most", self._request.run_id, lost, max(LEAST_S, left)
        )
        while not self._contact.is_closed:
            asked, timeout = self._runtime.now(), max(LEAST_S, round(left, 1))  # it appears in messages
            try:
                self._connect(timeout)
            except Exception as error:
                if not isinstance(error, (RdzvError, TimeoutError)) and pause == _AGAIN_S:  # once
                    logger.exception("run %s: reaching the rendezvous again has failed", self._request.run_id)
                # it did not need all the time
                answer = isinstance(error, RdzvError) and self._runtime.now() < asked + timeout
                refused = answer and not isinstance(error, ConnectionLost)
                then = error if refused or not lost.silent else None  # else it has said what is wrong
                final = refused and not self._view.newest
                if self._contact.outage.ended_by(error, asked, timeout) or final:
                    self._contact.give_up(lost, then)
                    return
            else:
                self._was_out_since, self._recovered_at = since, self._runtime.now()
                self._contact.outage.over()
                logger.warning("run %s: back%s, with a new session", self._request.run_id, self._request.at_endpoint)
                return
            self._runtime.sleep(min(pause, self._contact.outage.left))
            pause, left = min(1.5 * pause, _LONGEST_PAUSE_S), self._contact.outage.left


def settings_of(
    request: Request, backend: str, options: ElasticOptions, host: str, runtime: Runtime = SYSTEM
) -> dict[str, Any]:
    """The settings that nodes compare, this node's, and who it is: everything that each node of the job may read."""
    store, fanout, same_command = options.store, options.fanout, options.same_command
    settings = {
        "protocol": PROTOCOL,
        "run_id": request.run_id,
        "backend": backend,
        "nnodes": wanted(request.min_nodes, request.max_nodes),
        "store": store,
    }
    if request.entrypoint:  # plain torchrun does not provide it
        settings[WAY] = same_command
        if same_command != "no":
            compared = request.entrypoint if same_command == "arguments" else request.entrypoint[:1]
            settings[COMMAND] = digest(compared)
    if os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL") == "1":  # torch then computes ranks from its own number
        settings["nproc"] = request.nproc_per_node
    if fanout:
        settings["fanout"] = fanout  # who is whose parent is known from the rank alone
    for name in ("node_unit", "min_per_domain"):  # the leader uses its own
        if (value := getattr(options, name)) != 1:
            settings[name] = value
    if token_of(request) is not None:  # where nodes meet at a service of their own, one without would get this far
        settings["token"] = "given"
    if request.preflight:
        settings["preflight"] = ",".join(request.preflight)
    if places := places_of(request):
        settings["endpoints"] = ",".join(map(str, places))
    return signed(settings, host, runtime) | {COMMAND: outline(request.entrypoint)}
