"""The way to the place where a job's nodes meet: its name, the connection, and who answers."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
import uuid
from collections.abc import Iterator

from rdzv_launcher.tools.doctor.findings import Finding, findings_of, within
from rdzv_launcher.tools.job import Whose, statistics_of
from rdzv_plugins.assemble.create import health, preflight, prepare
from rdzv_plugins.assemble.recognition import recognise
from rdzv_plugins.elastic.endpoint_options import DEFAULT_PORT
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.host import PluginHost
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.native.server import version
from rdzv_plugins.kvstore.sockets.reach import REFUSED, is_own_address, remedy_of, resolve, try_connect

_TIMES, _LIMIT_S, _SLOW_S = 5, 5.0, 0.2
"""How many connections are made to measure one, how long each may take, and from what time on it is slow."""
_ANSWER_S = 2.0


def way(endpoint: Endpoint) -> Iterator[Finding]:
    """From the name to a connection. Raises ``EndpointUnreachable`` if there is no way."""
    try:
        found = within(_LIMIT_S, lambda: sorted({str(each[4][0]) for each in resolve(endpoint.host, endpoint.port)}))
    except TimeoutError:
        text = f"{endpoint.host}: the look-up of this name takes more than {_LIMIT_S:g} s"
        raise EndpointUnreachable(text, remedy="Give an address, or mend the name servers.") from None
    except OSError as error:
        text = f"{endpoint.host}: the name does not resolve ({error.strerror})"
        raise EndpointUnreachable(text, remedy="Check the name, or give an IP address.") from None
    here = " (this machine)" if is_own_address(endpoint.host) else ""
    yield Finding("ok", "name", f"{endpoint.host} is {', '.join(found)}{here}")
    times = []
    for _ in range(_TIMES):
        began = time.monotonic()
        connection, reason = try_connect(endpoint, _LIMIT_S, None)
        if connection is None and reason == REFUSED:
            yield Finding(
                "warning",
                "connection",
                f"nobody listens at {endpoint} yet{here}",
                "That is right before a start if a node of the job serves it; a service has to run first.",
            )
            return
        if connection is None:
            raise EndpointUnreachable(f"{endpoint} cannot be reached: {reason}", remedy=remedy_of(reason))
        connection.close()
        times.append(time.monotonic() - began)
    took = f"{endpoint} takes a connection in {statistics.median(times) * 1000:.1f} ms"
    if max(times) > _SLOW_S:
        slow = f"{took}, but one took {max(times) * 1000:.0f} ms"
        yield Finding("warning", "connection", slow, "Packets are lost, or the machine is busy.")
    else:
        yield Finding("ok", "connection", took)


def who_answers(host: PluginHost, request: Request) -> Iterator[Finding]:
    """What is there, according to the job's backend, or to every backend if none is named. Writes nothing there."""
    request = dataclasses.replace(request, run_id=f"doctor-{uuid.uuid4().hex[:8]}", given=request.given | {"run_id"})
    name, services = request.backend, []
    for endpoint in endpoints_of(request.endpoint):
        there = dataclasses.replace(request, endpoint=str(endpoint))
        known = None if request.backend else recognise(host.catalog, there)
        if known is not None:
            name = known.entry.backend.name
            yield Finding("ok", "who answers", f"{endpoint} is {known.what}")
        elif not request.backend:
            yield Finding(
                "warning",
                "who answers",
                f"no backend that is installed here knows what listens at {endpoint}, if anything does",
                "Name the job's with --rdzv-backend; or another program has that port.",
            )
            continue
        entry = known.entry if known is not None else host.catalog.find(request.backend)
        if entry.backend.health is None:  # otherwise it says itself what its service is
            services += [*_native(host, there, endpoint)]
    yield from services
    if not name or (services and not request.backend):  # any of several backends may be the job's
        return
    entry = host.catalog.find(name)
    prepared = prepare(entry, dataclasses.replace(request, backend=name))
    yield from findings_of("health", lambda: _health(host, entry, prepared))
    with contextlib.ExitStack() as held:
        found = preflight(host, entry, prepared, held)
    if found is None:
        yield Finding("skipped", "backend", f"{name} does not say what it finds there")
    else:
        yield Finding("ok", "backend", f"{name}: {found}".replace(f", and run {request.run_id!r} has no node yet", ""))


def _health(host: PluginHost, entry: Entry, request: Request) -> Iterator[Finding]:
    """How the service there is, according to its backend; nothing if the backend does not say."""
    for check in health(host, entry, request, _LIMIT_S) or ():
        yield Finding(check.verdict, check.name, check.text, check.remedy)


def _native(host: PluginHost, request: Request, endpoint: Endpoint) -> Iterator[Finding]:
    """What a native store there says about itself; nothing if there is none."""
    whose = Whose(host, dataclasses.replace(request, endpoint=str(endpoint)))
    with contextlib.suppress(EndpointUnreachable):
        server = statistics_of(endpoint, _ANSWER_S, whose)["server"]
        if server["version"] == version():
            yield Finding("ok", "service", f"rdzv-plugins {server['version']} serves at {endpoint}, as here")
        else:
            yield Finding(
                "warning",
                "service",
                f"rdzv-plugins {server['version']} serves at {endpoint}, and here is {version()}",
                "Install the same version on all nodes.",
            )


def endpoints_of(text: str) -> list[Endpoint]:
    """The endpoints in a comma-separated list. Raises ``UsageError``."""
    return [parse_endpoint(part.rpartition("://")[2].rstrip("/"), DEFAULT_PORT) for part in text.split(",") if part]
