"""The network of this machine: its names and addresses, and the way to the place where a job's nodes meet."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import ipaddress
import os
import socket
import statistics
import struct
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from rdzv_launcher.tools.doctor.checks import Finding, judged, run_check
from rdzv_launcher.tools.job import StoreAt
from rdzv_plugins.elastic.options import DEFAULT_PORT
from rdzv_plugins.endpoints import Endpoint, is_loopback_address, parse_endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.native.server import version
from rdzv_plugins.kvstore.sockets.reach import REFUSED, default_address, is_own_address, remedy_of, resolve, try_connect
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.create import health, preflight, prepare, recognise
from rdzv_plugins.timing import within

_SLOW_S, _LIMIT_S = 0.2, 5.0
"""A look-up or a connection that takes longer than the first is slow; nobody here waits longer than the second."""
_TIMES = 5
"""How many connections are made to measure one."""
_ANSWER_S = 2.0
_SIOCGIFADDR, _SIOCGIFFLAGS, _IFF_UP = 0x8915, 0x8913, 1
_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def _addresses(host: str, port: int) -> str:
    """What the name resolves to, by commas. Raises ``TimeoutError`` or ``OSError``."""
    found = within(_LIMIT_S, lambda: sorted({str(each[4][0]) for each in resolve(host, port)}), "rdzv-doctor")
    return ", ".join(found)


def host_name() -> Iterator[Finding]:
    """Whether this machine's name resolves, and to what."""
    name = socket.gethostname()
    tells = "rdzv-run sends other nodes addresses, not this name"
    fine = problem = ""
    try:
        found = _addresses(name, 0)
    except TimeoutError:
        problem = f"looking up {name} takes more than {_LIMIT_S:g} s"
        remedy = "Add the name to /etc/hosts, or fix the name servers in /etc/resolv.conf."
    except OSError as error:
        problem = f"{name} does not resolve here ({error.strerror})"
        remedy = f"{tells}; programs that look the name up, like torch's own rendezvous, need it in /etc/hosts."
    else:
        fine = f"{name} is {found}"
        if all(map(is_loopback_address, found.split(", "))):
            problem = f"{fine} here, a loopback address that other nodes cannot reach"
        remedy = f"{tells}; for programs that look the name up, put its network address in /etc/hosts."
    yield judged("host name", fine, problem, remedy)


def reverse_dns() -> Iterator[Finding]:
    """How long it takes to find the name of an address: torch's own servers do that for each connection."""
    address = default_address()
    began = time.monotonic()
    try:
        name = within(_LIMIT_S, lambda: socket.getnameinfo((address, 0), 0)[0], "rdzv-doctor")
    except TimeoutError:
        took = f"more than {_LIMIT_S:g} s"
    else:
        seconds = time.monotonic() - began
        if seconds < _SLOW_S:
            known = f"is {name}" if name != address else "has no name"
            yield Finding("reverse look-up", f"{address} {known} (looked up in {seconds * 1000:.0f} ms)")
            return
        took = f"{seconds:.1f} s"
    yield Finding(
        "reverse look-up",
        f"looking up the name of {address} takes {took}; torch's own servers (backends c10d and static) do that for "
        "every connection",
        "warning",
        "Add the nodes' addresses to /etc/hosts, or use a backend with its own server.",
    )


def interfaces() -> Iterator[Finding]:
    """The addresses of this machine, and which of them other nodes are told."""
    seen, found = default_address(), {**_ipv4(), **_ipv6()}
    by_name: dict[str, list[str]] = {}
    for address, name in found.items():
        by_name.setdefault(name, []).append(address)
    shown = [f"{name} {', '.join(addresses)}" for name, addresses in sorted(by_name.items())]
    if is_loopback_address(seen):
        yield Finding(
            "interfaces",
            f"no default route, so this node would announce {seen}, which other nodes cannot reach "
            f"({'; '.join(shown)})",
            "warning",
            "For several nodes: give --local-addr=ADDRESS, or an endpoint that the right interface leads to.",
        )
    else:
        name = found.get(seen, "?")
        yield Finding("interfaces", f"this node announces {seen} ({name}); all: {'; '.join(shown)}")
    for variable in _INTERFACE_VARIABLES:
        yield from _named_by(variable, {name for _, name in socket.if_nameindex()})


def _named_by(variable: str, there: set[str]) -> Iterator[Finding]:
    """Names of interfaces in a variable of the collectives: ^ means to leave them out, = an exact name, not a prefix.

    gloo and TensorPipe need every interface that is named; NCCL and HCCL use those that they find.
    """
    text = os.environ.get(variable, "")
    if not text or text.startswith("^"):
        return
    names = [part.partition(":")[0] for part in text.removeprefix("=").split(",")]
    exact = text.startswith("=")
    missing = [name for name in names if not any(each == name if exact else each.startswith(name) for each in there)]
    if len(missing) == len(names) or (missing and variable.startswith(("GLOO", "TP"))):
        yield Finding(
            variable,
            f"{text}: no interface {' or '.join(missing)} on this machine ({', '.join(sorted(there))})",
            "wrong",
            f"Unset {variable}, or name one of these.",
        )
    else:
        yield Finding(variable, f"{text} exists")


def _ipv4() -> dict[str, str]:
    """The first IPv4 address of each interface that is up: address to name. Source: netdevice(7)."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                flags = struct.unpack_from("H", fcntl.ioctl(asked, _SIOCGIFFLAGS, request), 16)[0]
                address = socket.inet_ntoa(fcntl.ioctl(asked, _SIOCGIFADDR, request)[20:24])
            except OSError:  # it has no address
                continue
            if flags & _IFF_UP:
                found[address] = name
    return found


def _ipv6() -> dict[str, str]:
    """The IPv6 addresses that are not link-local: address to name."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        digits, *_, name = line.split()
        address = ipaddress.IPv6Address(int(digits, 16))
        if not address.is_link_local:
            found[str(address)] = name
    return found


def path_to(endpoint: Endpoint) -> Iterator[Finding]:
    """From the name to a connection. Raises ``EndpointUnreachable``."""
    try:
        found = _addresses(endpoint.host, endpoint.port)
    except TimeoutError:
        text = f"looking up {endpoint.host} takes more than {_LIMIT_S:g} s"
        raise EndpointUnreachable(text, remedy="Give an address, or fix the name servers.") from None
    except OSError as error:
        text = f"{endpoint.host} does not resolve ({error.strerror})"
        raise EndpointUnreachable(text, remedy="Check the name, or give an IP address.") from None
    here = " (this machine)" if is_own_address(endpoint.host) else ""
    yield Finding("name", f"{endpoint.host} is {found}{here}")
    times = []
    for _ in range(_TIMES):
        began = time.monotonic()
        connection, reason = try_connect(endpoint, _LIMIT_S, None)
        if connection is None and reason == REFUSED:
            yield Finding(
                "connection",
                f"nothing listens at {endpoint} yet{here}",
                "warning",
                "That is fine before a job starts whose nodes serve the endpoint; a service must already run.",
            )
            return
        if connection is None:
            raise EndpointUnreachable(f"{endpoint} cannot be reached: {reason}", remedy=remedy_of(reason))
        connection.close()
        times.append(time.monotonic() - began)
    took = f"{endpoint} accepts a connection in {statistics.median(times) * 1000:.1f} ms"
    slow = max(times) > _SLOW_S and f"{took}, but one took {max(times) * 1000:.0f} ms"
    yield judged("connection", took, slow, "Look for packet loss, or a busy machine.")


def who_answers(host: PluginHost, request: Request) -> Iterator[Finding]:
    """What is there, according to the job's backend, or to every backend if none is named. Writes nothing there."""
    request = dataclasses.replace(request, run_id=f"doctor-{uuid.uuid4().hex[:8]}", given=request.given | {"run_id"})
    name, services = request.backend, []
    for endpoint in endpoints_of(request.endpoint):
        there = dataclasses.replace(request, endpoint=str(endpoint))
        known = None if request.backend else recognise(host.catalog, there)
        if known is not None:
            name = known.entry.backend.name
            yield Finding("who answers", f"{endpoint} is {known.what}")
        elif not request.backend:
            yield Finding(
                "who answers",
                f"no installed backend recognises what listens at {endpoint}, if anything does",
                "warning",
                "Name the job's backend with --rdzv-backend; otherwise another program has that port.",
            )
            continue
        entry = known.entry if known is not None else host.catalog.find(request.backend)
        if entry.backend.health is None:  # otherwise it says itself what its service is
            services += [*_native(StoreAt(host, there))]
    yield from services
    if not name or (services and not request.backend):  # any of several backends may be the job's
        return
    entry = host.catalog.find(name)
    prepared = prepare(entry, dataclasses.replace(request, backend=name))
    yield from run_check("health", lambda: health(host, entry, prepared, _LIMIT_S) or ())
    with contextlib.ExitStack() as held:
        found = preflight(host, entry, prepared, held)
    if found is None:
        yield Finding("backend", f"{name} has no check of its own", "skipped")
    else:
        yield Finding("backend", f"{name}: {found}".replace(f", and run {request.run_id!r} has no node yet", ""))


def _native(store: StoreAt) -> Iterator[Finding]:
    """What a native store there says about itself; nothing if there is none."""
    with contextlib.suppress(EndpointUnreachable):
        server = store.statistics(_ANSWER_S)["server"]
        serves = f"rdzv-plugins {server['version']} serves at {store.endpoint}"
        other = server["version"] != version() and f"{serves}, but this machine has {version()}"
        yield judged("service", f"{serves}, as on this machine", other, "Install the same version on all nodes.")


def endpoints_of(text: str) -> list[Endpoint]:
    """The endpoints in a comma-separated list. Raises ``UsageError``."""
    return [parse_endpoint(part.rpartition("://")[2].rstrip("/"), DEFAULT_PORT) for part in text.split(",") if part]
