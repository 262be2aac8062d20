"""--preflight on one node: before each round it tests itself and asks plug-ins; the handler acts on the results.

If the backend's nodes do not decide together who takes part, that is decided here: a broken node ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from rdzv_plugins.errors import PreflightFailed
from rdzv_plugins.host.manager import PluginHost
from rdzv_plugins.interfaces import NodeCheck, RendezvousHandler, Request
from rdzv_plugins.preflight import PLUGINS

logger = logging.getLogger(__name__)


class NodePreflight:
    """The preflight of a launch whose request asks for checks. For the agent's main thread."""

    def __init__(self, host: PluginHost, request: Request, directories: Sequence[str]) -> None:
        """``directories`` are those that this node writes to."""
        self._host, self._request, self._directories = host, request, directories

    def before(self, handler: RendezvousHandler) -> None:
        """Make the checks that the request asks for, or let a handler that knows what follows make them before a round.

        Raises ``PreflightFailed``, or as the hook ``rdzv_preflight``.
        """
        if handler.check_by(self._checks):
            return
        checks = self._checks()
        for each in checks:
            if each.verdict == "warning":
                logger.warning("--preflight: %s: %s", each.name, each.text)
        if broken := [f"{each.name}: {each.text}" for each in checks if each.verdict == "broken"]:
            raise PreflightFailed(
                f"run {self._request.run_id!r}: this node is broken: {'; '.join(broken)}",
                remedy=f"Repair or replace it. Backend {self._request.backend!r} can leave out no node.",
            )

    def _checks(self) -> list[NodeCheck]:
        from rdzv_plugins.preflight.own_node import checks_of

        began = time.monotonic()
        checks = checks_of(self._request.preflight, self._directories)
        if PLUGINS in self._request.preflight:
            checks += self._host.preflight(self._request)
        for each in checks:
            logger.debug("--preflight: %s %s: %s", each.verdict, each.name, each.text or each.value)
        logger.info("--preflight: this node has tested itself in %.1f s", time.monotonic() - began)
        return checks
