"""Machines of their own for the nodes of a benchmark: network namespaces if that is allowed, otherwise loopback.

Namespaces, which are arranged around a switch, need root and ``ip``. One process holds all of them and reads its input:
they end with it, whatever happens, and none of this touches the machine's own interfaces, routes or names.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

from rdzv_launcher.bench.processes.child import Child
from rdzv_plugins.errors import RdzvError, UsageError

KINDS = ("auto", "namespaces", "loopback")
_CLONE_NEWNET = 0x40000000
_PER_ROW = 250  # addresses 10.77.ROW.1 to .250
_MOST_NODES = 1000
"""A Linux bridge has at most 1023 ports."""
_PATIENCE_S = 600.0
"""Making or ending a thousand of them takes a while."""
_KEEPER = """
import os, subprocess, sys
from rdzv_launcher.bench.processes.hosts import address, unshare

def ip(*commands):
    done = subprocess.run(["ip", "-batch", "-"], input="\\n".join(commands), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"ip: {done.stderr.strip()}")

def new_network():
    unshare()
    return os.open("/proc/self/ns/net", os.O_RDONLY)

def path(network):
    return f"/proc/{os.getpid()}/fd/{network}"

count = int(sys.argv[1])
switch = new_network()
ip("link add lan type bridge", "link set lan up")
found = []
for number in range(count):
    found.append(path(new_network()))
    ip("link set lo up", f"link add eth0 type veth peer name port{number} netns {path(switch)}",
       f"addr add {address(number)}/16 dev eth0", "link set eth0 up")
command = ["nsenter", f"--net={path(switch)}", "ip", "-batch", "-"]
lines = "".join(f"link set port{n} master lan\\nlink set port{n} up\\n" for n in range(count))
done = subprocess.run(command, input=lines, capture_output=True, text=True)
if done.returncode:
    sys.exit(f"ip: {done.stderr.strip()}")
print(*found, flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Machine:
    """The place where a process or a client is to be."""

    address: str
    """The address at which the other machines reach it."""
    network: str = ""
    """The file of its network namespace; empty: where this process is."""


class Network:
    """Machines that reach each other: one for the root, one for the relay, and the nodes. A context manager."""

    def __init__(self, nodes: int, *, namespaces: bool) -> None:
        """Raises ``UsageError`` if namespaces are asked for and are not available."""
        self.namespaces = namespaces
        self._keeper: Child | None = None
        machines = [Machine("127.0.0.1")] * (nodes + 2) if not namespaces else self._make(nodes + 2)
        self.root, self.relay, *self.nodes = machines

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeper is not None:
            self._keeper.end()

    @property
    def interface(self) -> str:
        """The interface through which the nodes' workers reach each other."""
        return "eth0" if self.namespaces else "lo"

    def _make(self, count: int) -> list[Machine]:
        command = [sys.executable, "-c", _KEEPER, str(count)]
        self._keeper = Child("the process of the network namespaces", command, end_limit_s=_PATIENCE_S)
        try:
            paths = self._keeper.wait_ready(_PATIENCE_S).split()
        except RdzvError as error:
            self._keeper.end()
            raise UsageError(f"network namespaces cannot be made: {error}", remedy="Take --hosts=loopback.") from None
        return [Machine(address(number), path) for number, path in enumerate(paths)]


def may_have_namespaces(kind: str) -> bool:
    """Whether ``--hosts=kind`` means namespaces on this machine. Raises ``UsageError`` if they cannot be had."""
    if kind == "loopback":
        return False
    try:
        with Network(1, namespaces=_has_tools(required=kind == "namespaces")) as network:
            return network.namespaces
    except UsageError:
        if kind == "namespaces":
            raise
        return False


def fits(nodes: int) -> bool:
    """Whether this many nodes fit around one switch."""
    return nodes <= _MOST_NODES


def _has_tools(*, required: bool) -> bool:
    missing = [program for program in ("ip", "nsenter") if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        why = f"{missing[0]} is not installed" if missing else "they need root"
        if required:
            raise UsageError(f"--hosts=namespaces: {why}", remedy="Take --hosts=loopback.")
        return False
    return True


def address(number: int) -> str:
    """The address of one of the simulated machines."""
    return f"10.77.{number // _PER_ROW + 1}.{number % _PER_ROW + 1}"


def unshare() -> None:
    """Take the calling thread into a new network. Raises ``OSError``."""
    _checked("unshare", _CLONE_NEWNET)


@contextmanager
def inside(machine: Machine) -> Iterator[None]:
    """Take the calling thread to a machine and back: sockets and threads that are created meanwhile stay there.

    Raises ``OSError``.
    """
    if not machine.network:
        yield
        return
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    there = os.open(machine.network, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _checked("setns", there, _CLONE_NEWNET)
        yield
    finally:
        _checked("setns", home, _CLONE_NEWNET)
        os.close(there)
        os.close(home)


def _checked(function: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns needs Python 3.12
    if libc[function](*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{function}: {os.strerror(error)}")
