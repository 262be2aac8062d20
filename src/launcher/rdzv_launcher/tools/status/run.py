"""A run as its backend sees it, for ``rdzv status`` where the endpoint is not a native store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from rdzv_launcher.tools.status.figures import many
from rdzv_launcher.tools.status.rounds import round_data, round_text
from rdzv_plugins.assemble.looking import look
from rdzv_plugins.assemble.recognition import Found, recognise
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.host import PluginHost
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.interfaces import DEFAULT_RUN_ID, Request
from rdzv_plugins.options import parse_conf


def request_of(endpoint: str, backend: str, run_id: str, conf: str) -> Request:
    """The request that a node of the job would make. Raises what ``parse_conf`` does."""
    return Request(
        backend=backend,
        run_id=run_id or DEFAULT_RUN_ID,
        endpoint=endpoint,
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=0,
        conf=MappingProxyType(parse_conf(conf)),
        given=frozenset({"run_id"} if run_id else ()),
    )


class Whose:
    """Asks all backends what an endpoint is, for ``ask_statistics``; ``found`` is who knew it."""

    def __init__(self, host: PluginHost, request: Request) -> None:
        self._host, self._request = host, request
        self.found: Found | None = None

    def __call__(self) -> EndpointUnreachable | None:
        """The error that says what is at the endpoint, if a backend knows it: a ``Stranger``."""
        self.found = recognise(self._host.catalog, self._request)
        if self.found is None:
            return None
        return EndpointUnreachable(f"at {self._request.endpoint} is {self.found.what}, and no native store")


def run_data(entry: Entry, request: Request, timeout: float) -> dict[str, Any]:
    """The run, as JSON has it. Raises ``RdzvError``."""
    return {
        "run": request.run_id if request.is_named else "",
        "backend": entry.backend.name,
        "endpoint": request.endpoint,
        "round": round_data(look(entry, request, timeout), timeout),
    }


def run_text(data: Mapping[str, Any], show: Callable[[Endpoint, Mapping[str, Any]], str]) -> str:
    """The run described for people; ``show`` formats the workers' store's statistics."""
    found = data["round"]
    run = f"run {data['run']!r}" if data["run"] else "the run"
    members = "" if found["members"] is None else f": {many(found['members'], 'node')} there"
    leader = f", led by {found['leader']}" if found["leader"] else ""
    return "\n".join([f"{run} at {data['endpoint']} by {data['backend']}{members}{leader}", *round_text(found, show)])
