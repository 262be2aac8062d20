"""A run as its backend sees it, for ``rdzv status`` where the endpoint is not a native store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rdzv_launcher.tools.status.figures import many
from rdzv_launcher.tools.status.rounds import round_data, round_text
from rdzv_plugins.assemble.create import with_options
from rdzv_plugins.assemble.looking import look
from rdzv_plugins.certificates import certificates_of
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.interfaces import Request
from rdzv_plugins.job_token import token_of


def run_data(entry: Entry, request: Request, timeout: float) -> dict[str, Any]:
    """The run, in its JSON form. Raises ``RdzvError``."""
    found = look(entry, request, timeout)
    asked = with_options(entry, request)  # with another service, cacert, cert and key belong to that
    return {
        "run": request.run_id if request.is_named else "",
        "backend": entry.backend.name,
        "endpoint": request.endpoint,
        "round": round_data(found, timeout, token_of(asked), certificates_of(asked)),
    }


def run_text(data: Mapping[str, Any], show: Callable[[Endpoint, Mapping[str, Any]], str]) -> str:
    """The run described for people; ``show`` formats the workers' store's statistics."""
    found = data["round"]
    run = f"run {data['run']!r}" if data["run"] else "the run"
    members = "" if found["members"] is None else f": {many(found['members'], 'node')} there"
    leader = f", led by {found['leader']}" if found["leader"] else ""
    return "\n".join([f"{run} at {data['endpoint']} by {data['backend']}{members}{leader}", *round_text(found, show)])
