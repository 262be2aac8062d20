"""The ports of a range, in turn: the store of a new round must not be found where that of an old one was."""

from __future__ import annotations

from collections.abc import Iterator

from rdzv_plugins.options import PortRange
from rdzv_plugins.runtime import SYSTEM, Runtime

_LISTENING, _TIME_WAIT = "0A", "06"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


class PortTurns:
    """Iterates over all ports of ``ports``, each time starting after the one at which the last iteration stopped.

    Ports that nobody has used lately come first, and those that still have living connections come last: a late worker
    of an old round may be at the other end. The first turn begins at random, so that another process of this machine,
    or the same one started again, is unlikely to begin at the same port. Use from one thread at a time.
    """

    def __init__(self, ports: PortRange, runtime: Runtime = SYSTEM) -> None:
        self._ports = ports
        self._next = runtime.random.randrange(ports.last - ports.first + 1)

    def __iter__(self) -> Iterator[int]:
        ports = list(self._ports)
        ports = ports[self._next :] + ports[: self._next]
        used = _connected_ports() if len(ports) > 1 else {}
        for port in sorted(ports, key=lambda port: used.get(port, 0)):  # equals stay in turn
            self._next = (port - self._ports.first + 1) % len(ports)
            yield port

    @property
    def first(self) -> int:
        """The lowest of the ports."""
        return self._ports.first

    def __str__(self) -> str:
        return str(self._ports)


def _connected_ports() -> dict[int, int]:
    """The local ports of this machine's TCP connections, if /proc tells: 1 if both ends have closed, 2 if not."""
    ports: dict[int, int] = {}
    for table in _TABLES:
        try:
            with open(table) as lines:
                next(lines, None)  # the heading
                for line in lines:
                    _, local, _, state, _ = line.split(maxsplit=4)
                    if state != _LISTENING:
                        port = int(local.rpartition(":")[2], 16)
                        ports[port] = max(ports.get(port, 0), 1 if state == _TIME_WAIT else 2)
        except OSError:
            continue
    return ports
