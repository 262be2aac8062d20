"""Listening on a port before anybody is told about it, and naming the holder of a port that is taken."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AddressInUse
from rdzv_plugins.kvstore.sockets.reach import is_own_address, resolve
from rdzv_plugins.options import PortRange
from rdzv_plugins.runtime import (
    AF_INET,
    AF_INET6,
    IPPROTO_IPV6,
    IPV6_V6ONLY,
    SO_REUSEADDR,
    SOCK_STREAM,
    SOL_SOCKET,
    SYSTEM,
    Runtime,
    gaierror,
)
from rdzv_plugins.system.processes import command

if TYPE_CHECKING:
    import socket

_LISTENING, _TIME_WAIT = "0A", "06"


def _tcp_sockets() -> Iterator[tuple[int, str, str]]:
    """Local port, state and inode of each TCP socket of this machine, as far as /proc tells."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as lines:
            next(lines, None)  # the heading
            for line in lines:
                _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
                yield int(local.rpartition(":")[2], 16), state, inode


class PortAllocator:
    """Iterates over all ports of ``ports``, each time starting after the one at which the last iteration stopped.

    Ports that nobody has used lately come first, and those that still have living connections come last: a late worker
    of an old round may be at the other end. The first turn begins at random, so that another process of this machine,
    or the same one started again, is unlikely to begin at the same port. Use from one thread at a time.
    """

    def __init__(self, ports: PortRange, runtime: Runtime = SYSTEM) -> None:
        self._ports, self.first = ports, ports.first
        self._next = runtime.random.randrange(ports.last - ports.first + 1)

    def __iter__(self) -> Iterator[int]:
        ports = list(self._ports)
        ports = ports[self._next :] + ports[: self._next]
        used = _connected_ports() if len(ports) > 1 else {}
        for port in sorted(ports, key=lambda port: used.get(port, 0)):  # equals stay in turn
            self._next = (port - self._ports.first + 1) % len(ports)
            yield port

    def __str__(self) -> str:
        return str(self._ports)


def _connected_ports() -> dict[int, int]:
    """The local ports of this machine's TCP connections, if /proc tells: 1 if both ends have closed, 2 if not."""
    ports: dict[int, int] = {}
    for port, state, _ in _tcp_sockets():
        if state != _LISTENING:
            ports[port] = max(ports.get(port, 0), 1 if state == _TIME_WAIT else 2)
    return ports


_ANY = [(AF_INET6, "::"), (AF_INET, "0.0.0.0")]
_TRIES = 10
_APART_S = 0.02


Ports = PortRange | PortAllocator
"""Ports to try, in that order."""


def bind(host: str, ports: Ports, what: str, runtime: Runtime = SYSTEM) -> socket.socket:
    """A TCP socket that listens on the first free port of ``ports``, for peers that dial ``host``.

    It listens on ``host`` itself if that is a loopback address, otherwise on all interfaces, as torch's server does. On
    ``localhost`` it listens where that name leads on this machine, on IPv4 if on both: who dials the name tries both.
    Raises ``AddressInUse``, which names the process that holds the port if /proc tells.
    """
    if not Endpoint(host, 0).is_loopback:
        return _listen(_ANY, ports, what, runtime, dual=True)
    if host == "localhost":
        found = {(family, str(address[0])) for family, _, _, _, address in resolve(host, 0, runtime)}
        return _listen(sorted(found), ports, what, runtime)
    return _listen([(AF_INET6 if ":" in host else AF_INET, host)], ports, what, runtime)


def bind_exactly(host: str, ports: Ports, what: str, runtime: Runtime = SYSTEM) -> socket.socket:
    """A socket like that of ``bind``, but on ``host`` alone: a name or an address of this machine.

    ``""`` means all interfaces, of IPv4 and IPv6; ``0.0.0.0`` those of IPv4 and ``::`` those of IPv6.
    """
    if not host:
        return _listen(_ANY, ports, what, runtime, dual=True)
    try:
        found = resolve(host, 0, runtime)
    except gaierror as error:
        raise AddressInUse(
            f"{what} cannot listen on {host!r}: the name does not resolve ({error.strerror})",
            remedy="Give an address of this machine, or none to listen on all of them.",
        ) from None
    return _listen(
        [(family, str(address[0])) for family, _, _, _, address in found], ports, what, runtime, where=f"{host} "
    )


def bind_if_here(
    endpoint: Endpoint, is_host: bool | None, what: str, runtime: Runtime = SYSTEM
) -> socket.socket | None:
    """A socket like that of ``bind`` if this node has to serve ``endpoint``; None if it is a client of another process.

    With ``is_host`` None it serves if the address is one of this machine and nobody else serves there already. Raises
    ``AddressInUse`` if ``is_host`` True cannot be satisfied.
    """
    if not (is_own_address(endpoint.host, runtime) if is_host is None else is_host):
        return None
    try:
        return bind(endpoint.host, PortRange(endpoint.port, endpoint.port), what, runtime)
    except AddressInUse:
        if is_host:
            raise
        return None  # another agent of this machine serves, or rdzv serve: greeting it will tell whose it is


def _listen(
    candidates: list[tuple[socket.AddressFamily, str]],
    ports: Ports,
    what: str,
    runtime: Runtime,
    *,
    dual: bool = False,
    where: str = "",
) -> socket.socket:
    failure: OSError | None = None
    for port in ports:
        for family, address in candidates:
            try:
                return _listener(family, address, port, dual, runtime)
            except OSError as error:  # also on a machine without IPv6
                failure = failure if failure and failure.errno == errno.EADDRINUSE else error
                if error.errno == errno.EADDRINUSE:
                    break  # the other family would only hide it
    held = failure is not None and failure.errno == errno.EADDRINUSE
    holder = port_holder(ports.first) if held else ""
    remedy = "Stop that process, or choose another port." if held else "Choose another address or port."
    if holder.startswith(f"pid {runtime.getpid()} "):
        holder += ", which is this very process: it serves something else there"
        remedy = "Choose another port: the endpoint and --rdzv-conf worker_ports each need ports of their own."
    why = f"in use by {holder}" if held else failure and (failure.strerror or str(failure)).lower()
    raise AddressInUse(
        f"{what} cannot listen on {where}port {ports} of this machine ({runtime.gethostname()}): {why}", remedy=remedy
    )


def _listener(family: socket.AddressFamily, address: str, port: int, dual: bool, runtime: Runtime) -> socket.socket:
    """A socket that listens. Raises ``OSError``.

    With SO_REUSEADDR, Linux lets two sockets bind a port, and if both listen at the same moment it refuses both, as
    each finds the other. So a socket that is refused only then tries again, after a delay of its own.
    """
    tries = _TRIES
    while True:
        listener = runtime.socket(family, SOCK_STREAM)
        bound = False
        try:
            listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            if family == AF_INET6:
                listener.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0 if dual else 1)
            listener.bind((address, port))
            bound = True
            listener.listen()  # a second binder is refused from here on, not only from accept on
            return listener
        except OSError as error:
            listener.close()
            tries -= 1
            if not bound or error.errno != errno.EADDRINUSE or not tries:
                raise
        runtime.sleep(runtime.random.uniform(0, _APART_S))


def port_holder(port: int) -> str:
    """Who listens on a TCP port of this machine, as far as /proc tells: ``pid 812 (python train.py)``."""
    wanted = {f"socket:[{inode}]" for at, state, inode in _tcp_sockets() if at == port and state == _LISTENING}
    for pid in filter(str.isdecimal, os.listdir("/proc") if wanted else []):
        if wanted & _links(f"/proc/{pid}/fd") and (text := command(int(pid))):  # otherwise it has just ended
            return f"pid {pid} ({text[:120]})"
    return "another process"


def _links(directory: str) -> set[str]:
    """The targets of the links in ``directory``, as far as they still exist and we may read them."""
    links = set()
    try:
        for name in os.listdir(directory):
            with contextlib.suppress(OSError):
                links.add(os.readlink(f"{directory}/{name}"))
    except OSError:
        pass
    return links
