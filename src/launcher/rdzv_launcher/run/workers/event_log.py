"""--event-log-handler: torch's events, for handlers registered with torch. Without one, torch is not imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rdzv_plugins.errors import UsageError

_NONE = "null"
"""torch's default, which drops every event."""


class EventLog:
    """Hands events to one of torch's handlers."""

    def __init__(self, handler: str) -> None:
        """Raises ``UsageError`` if torch does not know the ``handler``."""
        self._handler = handler
        if handler == _NONE:
            return
        from torch.distributed.elastic.events import handlers

        try:
            handlers.get_logging_handler(handler)
        except KeyError:
            known = ", ".join(sorted(handlers._log_handlers))
            raise UsageError(
                f"--event-log-handler={handler}: torch knows no such handler", remedy=f"It knows {known}."
            ) from None

    @property
    def wanted(self) -> bool:
        """False if every event is dropped."""
        return self._handler != _NONE

    def record(self, name: str, metadata: Mapping[str, Any], *, source: str = "AGENT") -> None:
        """Record an event of the agent or of a worker, with the metadata that torch's events have."""
        if not self.wanted:
            return
        from torch.distributed.elastic import events

        events.record(
            events.Event(name=name, source=events.EventSource(source), metadata=dict(metadata)), self._handler
        )
