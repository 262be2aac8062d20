"""A node's part in the trials before its rounds: what it says about itself, and when it can be measured."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.elastic.link import Link
from rdzv_plugins.elastic.myself import Myself
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.elastic.trial.gloo import why_not
from rdzv_plugins.elastic.trial.node import NodeTrials
from rdzv_plugins.elastic.trial_keys import Checked, Task, Tried
from rdzv_plugins.errors import AddressInUse, ConnectionLost
from rdzv_plugins.interfaces import NodeCheck, Request
from rdzv_plugins.job_token import token_of

logger = logging.getLogger(__name__)


class Trying:
    """This node's part in the trials before its rounds.

    ``hear`` may be called from any thread, the rest from the agent's main thread.
    """

    def __init__(self, request: Request, options: ElasticOptions, link: Link, myself: Myself) -> None:
        self._self, self._link = myself, link
        self.checks: Sequence[NodeCheck] = ()
        """What this node has found out about itself."""
        gloo = "gloo" in request.preflight
        if gloo and (reason := why_not(token_of(request) is not None)):
            logger.warning("--preflight: gloo is not measured on this node: %s", reason)
            gloo = False
        self._measures = {"store", "network", "gloo"} & set(request.preflight)
        self._node = NodeTrials(options.worker_ports, self._say, self._ask, gloo)

    def fresh(self, address: str) -> dict[str, Any]:
        """What this node says about itself while it waits for a round, by fields of ``Member``.

        It can be measured from now on. ``address`` is the one that it is known by; while that is empty, it is not known
        and nothing is said.
        """
        if not address:
            return {}
        checks = [Checked(each.name, each.verdict, each.text, each.value, each.unit) for each in self.checks]
        fresh: dict[str, Any] = {"checks": tuple(checks[: keys.MOST_CHECKS]), "tried": None, "measures": 0}
        try:
            if self._measures:
                fresh["measures"] = self._node.open(address)
        except (AddressInUse, OSError) as error:
            logger.warning("--preflight: the other nodes cannot measure their way to this one: %s", error)
        return fresh

    def hear(self, task: Task | None) -> None:
        """Take in what the leader asks for. Returns at once."""
        self._node.hear(task)

    def close(self) -> None:
        """Stop being measured: this node has a place, or is leaving. May be repeated."""
        self._node.close()

    def _say(self, tried: Tried) -> None:
        self._self.say(tried=tried)

    def _ask(self) -> float:
        """Seconds that the service takes, or has taken so far, to answer; 0 while there is no session with it."""
        session, began = self._link.session, time.perf_counter()
        if session is None:
            return 0.0
        try:
            session.list(keys.JOB, timeout=patience(session))
        except ConnectionLost:
            return 0.0
        except TimeoutError:
            pass
        return time.perf_counter() - began
