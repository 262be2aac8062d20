"""Names and addresses of this machine: what other nodes see of it, and how long the resolver takes."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from rdzv_launcher.tools.doctor.findings import Finding, within
from rdzv_plugins.endpoints import is_loopback_address
from rdzv_plugins.kvstore.sockets.reach import default_address, resolve

_SLOW_S, _LIMIT_S = 0.5, 3.0
"""A look-up that takes longer than the first is slow; nobody here waits longer than the second."""
_SIOCGIFADDR, _SIOCGIFFLAGS, _IFF_UP = 0x8915, 0x8913, 1
_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def host_name() -> Iterator[Finding]:
    """Whether this machine's name resolves, and to what."""
    name = socket.gethostname()
    try:
        found = within(_LIMIT_S, lambda: sorted({str(each[4][0]) for each in resolve(name, 0)}))
    except TimeoutError:
        yield Finding(
            "warning",
            "host name",
            f"the look-up of {name} takes more than {_LIMIT_S:g} s",
            "Enter the name in /etc/hosts, or mend the name servers in /etc/resolv.conf.",
        )
        return
    except OSError as error:
        yield Finding(
            "warning",
            "host name",
            f"{name} does not resolve here ({error.strerror})",
            "rdzv-run tells other nodes addresses and not this name; what asks for the name, as torch's own "
            "rendezvous, needs it in /etc/hosts.",
        )
        return
    if all(map(is_loopback_address, found)):
        yield Finding(
            "warning",
            "host name",
            f"{name} is {', '.join(found)} here, which other nodes cannot reach",
            "rdzv-run tells other nodes addresses and not this name; for programs that ask for the name, enter the "
            "address of the network in /etc/hosts.",
        )
        return
    yield Finding("ok", "host name", f"{name} is {', '.join(found)}")


def reverse_look_up() -> Iterator[Finding]:
    """How long it takes to find the name of an address: torch's own servers do that for each connection."""
    address = default_address()
    began = time.monotonic()
    try:
        name = within(_LIMIT_S, lambda: socket.getnameinfo((address, 0), 0)[0])
    except TimeoutError:
        took = f"more than {_LIMIT_S:g} s"
    else:
        seconds = time.monotonic() - began
        if seconds < _SLOW_S:
            known = f"is {name}" if name != address else "has no name"
            yield Finding("ok", "reverse look-up", f"{address} {known}, known after {seconds * 1000:.0f} ms")
            return
        took = f"{seconds:.1f} s"
    yield Finding(
        "warning",
        "reverse look-up",
        f"the name of {address} takes {took} to look up, which torch's own servers (backends c10d and static) do for "
        "each connection",
        "Enter the addresses of the nodes in /etc/hosts, or use a backend with a server of its own.",
    )


def interfaces() -> Iterator[Finding]:
    """The addresses of this machine, and which of them other nodes are told."""
    seen, found = default_address(), {**_ipv4(), **_ipv6()}
    shown = [f"{name} {', '.join(addresses)}" for name, addresses in sorted(_by_name(found).items())]
    if is_loopback_address(seen):
        yield Finding(
            "warning",
            "interfaces",
            f"this machine has no default route, so other nodes would be told {seen}, which is itself for each of "
            f"them ({'; '.join(shown)})",
            "For several nodes give --local-addr=ADDRESS, or an endpoint that is dialled by the right interface.",
        )
    else:
        name = found.get(seen, "?")
        yield Finding("ok", "interfaces", f"other nodes are told {seen} ({name}); all: {'; '.join(shown)}")
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
            "wrong",
            variable,
            f"{text}: this machine has no interface {' and no '.join(missing)} ({', '.join(sorted(there))})",
            f"Unset {variable}, or name one of these.",
        )
    else:
        yield Finding("ok", variable, f"{text} is here")


def _by_name(found: dict[str, str]) -> dict[str, list[str]]:
    by_name: dict[str, list[str]] = {}
    for address, name in found.items():
        by_name.setdefault(name, []).append(address)
    return by_name


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
