"""Reaching an endpoint with plain sockets, so that a failure can be told apart and named.

torch's client reports one text for every cause; here a name that does not resolve, a refusal, a
time-out and a missing route are different sentences. No reverse look-up is ever made.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AddressInUse, EndpointUnreachable
from rdzv_plugins.options import PortRange

logger = logging.getLogger(__name__)

_ATTEMPT_S = 10.0
_REPORT_EVERY_S = 10.0


Greeting = Callable[[socket.socket], str]
"""Speaks to a fresh connection. Returns "" when the right program answered, else what is wrong;
raises ``EndpointUnreachable`` when trying again is of no use."""


def wait_reachable(endpoint: Endpoint, timeout: float, who: str, greet: Greeting | None = None) -> str:
    """Connect to ``endpoint`` and greet, again and again for up to ``timeout`` seconds, and hang up.

    Returns the address of this machine on the connection: the one that the other side can dial.
    ``who`` says in messages who should be listening. Raises ``EndpointUnreachable``.
    """
    start = time.monotonic()
    deadline = start + timeout
    next_report = start + _REPORT_EVERY_S
    delay = 0.05
    while True:
        address, reason = _try_connect(endpoint, min(_ATTEMPT_S, max(0.1, deadline - time.monotonic())), greet)
        if address is not None:
            return address
        now = time.monotonic()
        if now >= deadline:
            raise EndpointUnreachable(
                f"{who} at {endpoint} could not be reached within {timeout:g} s: {reason}", remedy=_remedy(reason)
            )
        if now >= next_report:
            logger.info("waiting for %s at %s: %s (%.0f s of %g s)", who, endpoint, reason, now - start, timeout)
            next_report = now + _REPORT_EVERY_S
        time.sleep(min(delay * random.uniform(0.5, 1.0), max(0.0, deadline - now)))
        delay = min(delay * 1.5, 1.0)


Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


def resolve(host: str, port: int) -> Sequence[Address]:
    """The addresses of ``host``, as from ``socket.getaddrinfo``. Raises ``socket.gaierror``."""
    # bytes: for text, Python loads its tables for international names (256 KiB), which hosts here are not
    name = host.encode() if host.isascii() else host
    return socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)


def _try_connect(endpoint: Endpoint, timeout: float, greet: Greeting | None) -> tuple[str | None, str]:
    """(own address, "") on success, else (None, why not)."""
    try:
        found = resolve(endpoint.host, endpoint.port)
    except socket.gaierror as error:
        return None, f"the name does not resolve ({error.strerror})"
    reason = "the name has no address"
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as connection:
            connection.settimeout(timeout)
            try:
                connection.connect(address)
                reason = greet(connection) if greet else ""
                if not reason:
                    return str(connection.getsockname()[0]), ""
            except ConnectionRefusedError:
                reason = "connection refused (nobody listens there yet)"
            except TimeoutError:
                reason = "no answer (machine down, or a firewall drops the packets)"
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
    return None, reason


def dial(host: str, port: int, timeout: float) -> socket.socket:
    """A connection to the first address of ``host`` that takes it within ``timeout`` seconds. Raises ``OSError``."""
    failure: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in resolve(host, port):
        connection = socket.socket(family, kind, protocol)
        connection.settimeout(timeout)
        try:
            connection.connect(address)
            return connection
        except OSError as error:
            connection.close()
            failure = error
    raise failure


def _remedy(reason: str) -> str:
    if "resolve" in reason:
        return "Check the name, or give an IP address."
    if "accepts" in reason:
        return "Another program may use that port: check what listens there."
    if "refused" in reason:
        return "Is that node's agent running, with the same endpoint? Its own output says why not."
    return "Check the address, the route and the firewall between the nodes."


def is_own_address(host: str) -> bool:
    """True when ``host`` is an address of this machine: decided by binding to it, never by names."""
    try:
        found = resolve(host, 0)
    except socket.gaierror:
        return False
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
                return True
            except OSError:
                continue
    return False


def bind(host: str, ports: PortRange, what: str) -> socket.socket:
    """A TCP socket that listens on the first free port of ``ports``.

    On ``host`` itself if that is a loopback address, else on all interfaces.
    Raises ``AddressInUse``, naming the process that holds the port where /proc tells.
    """
    candidates = _bind_addresses(host)
    failure: OSError | None = None
    for port in ports:
        for family, address in candidates:
            listener = socket.socket(family, socket.SOCK_STREAM)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6 and address == "::":
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listener.bind((address, port))
                listener.listen()  # a second binder is refused from here on, not only from accept on
                return listener
            except OSError as error:
                listener.close()
                failure = failure if failure and failure.errno == errno.EADDRINUSE else error
                if error.errno == errno.EADDRINUSE:
                    break  # the other family would only hide it
    held = failure is not None and failure.errno == errno.EADDRINUSE
    why = f"in use by {port_holder(ports.first)}" if held else str(failure)
    raise AddressInUse(
        f"{what} cannot listen on port {ports} of this machine ({socket.gethostname()}): {why}",
        remedy="Stop that process, or choose another port." if held else "Choose another address or port.",
    )


def _bind_addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    if not Endpoint(host, 0).is_loopback:
        return [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]
    if host == "localhost":
        return [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    return [(socket.AF_INET6 if ":" in host else socket.AF_INET, host)]


def port_holder(port: int) -> str:
    """Who listens on a TCP port of this machine, as well as /proc tells: ``pid 812 (python train.py)``."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as lines:
                rows = [line.split() for line in lines][1:]
        except OSError:
            continue
        inodes |= {row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in filter(str.isdecimal, os.listdir("/proc") if wanted else []):
        try:
            links = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
            if links & wanted:
                with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
                    command = cmdline.read().replace(b"\0", b" ").decode(errors="replace").strip()
                return f"pid {pid} ({command[:120]})"
        except OSError:
            continue
    return "another process"


def default_address() -> str:
    """The address of the interface with the default route; loopback when there is none. Sends nothing."""
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))  # documentation addresses: a route look-up, no packet
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"
