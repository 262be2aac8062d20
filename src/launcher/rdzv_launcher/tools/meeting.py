"""The place where the nodes of a job meet, reached like one more node, for commands that ask or watch a job."""

from __future__ import annotations

import sys

from rdzv_launcher.tools.job import Whose, run_of, statistics_of
from rdzv_launcher.tools.serving import serving_place
from rdzv_plugins.assemble.looking import coordination_of
from rdzv_plugins.certificates import certificates_of
from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import AccessRefused, EndpointUnreachable, RdzvError, UsageError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.interfaces import Request
from rdzv_plugins.job_token import token_of


class Meeting:
    """Finds the services of the jobs at an endpoint; for one command."""

    def __init__(self, request: Request, timeout: float, *, who: str, otherwise: str) -> None:
        """``who`` asks; ``otherwise`` says what can be done if nodes cannot be asked: a remedy."""
        self._host, self._request, self._timeout = PluginHost.load(), request, timeout
        self._who, self._otherwise = who, otherwise

    def service(self) -> tuple[CoordinationBackend, str]:
        """The service of the job that is meant, and the job's id. Raises ``RdzvError``."""
        found = self.services()
        if not isinstance(found, Endpoint):
            return found
        try:
            return self.at(found, run_of(self._request, found, self.runs(found)))
        except EndpointUnreachable as error:
            raise self._with_remedy(error) from error

    def services(self) -> Endpoint | tuple[CoordinationBackend, str]:
        """The native store at which any number of jobs meet; elsewhere, the service of the job that is meant.

        If there are several endpoints, it is the one that serves the job now.

        Raises ``RdzvError``.
        """
        request = self._request
        entry = self._host.catalog.find(request.backend) if request.backend else None
        if entry is not None and entry.backend.meets_at == "service":
            return coordination_of(entry, request), request.run_id
        if "," in request.endpoint:
            try:
                return self.at(*serving_place(self._host, request, self._timeout))
            except EndpointUnreachable as error:
                raise self._with_remedy(error) from error
        whose = Whose(self._host, request)
        endpoint = parse_endpoint(request.endpoint, None)
        try:
            statistics_of(endpoint, self._timeout, whose)
            return endpoint
        except AccessRefused:
            raise
        except EndpointUnreachable as error:
            found = entry or (whose.found.entry if whose.found is not None else None)
            if found is None:
                raise self._with_remedy(error) from error
            if entry is None and found.backend.meets_at == "service" and whose.found is not None:
                print(f"{request.endpoint} is {whose.found.what}", file=sys.stderr, flush=True)
                return coordination_of(found, request), request.run_id
            if whose.found is None:
                raise self._with_remedy(error) from error
            raise self._cannot(found, whose.found.what) from error

    def runs(self, endpoint: Endpoint) -> list[str]:
        """The jobs now at a native store. Raises ``EndpointUnreachable``."""
        stats = statistics_of(endpoint, self._timeout, Whose(self._host, self._request))
        return [str(each["name"]) for each in stats.get("runs", ())]

    def at(self, endpoint: Endpoint, run: str) -> tuple[CoordinationBackend, str]:
        """The service of one of the jobs at a native store."""
        from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination

        token, tls = token_of(self._request), certificates_of(self._request)
        return NativeCoordination(endpoint, run, name=self._who, who="the store", token=token, tls=tls), run

    def _cannot(self, entry: Entry, what: str) -> UsageError:
        return UsageError(f"{what}: nodes that meet by {entry.backend.name} cannot be asked", remedy=self._otherwise)

    def _with_remedy(self, error: RdzvError) -> EndpointUnreachable:
        remedy = f"{error.remedy} Or: {self._otherwise}" if error.remedy else f"Or: {self._otherwise}"
        return EndpointUnreachable(str(error), remedy=remedy)
