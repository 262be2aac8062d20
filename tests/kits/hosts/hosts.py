"""Hosts as network namespaces: addresses, names and links of their own, around switches that are in one, too.

A host is a process that holds its namespaces (network, mounts, host name) and reads its input: it ends with the
test or with the test run, whatever happens, and the kernel takes down what it held. Nothing of this touches the
machine's own interfaces, routes, names or files. Needs root, and ``ip``, ``unshare`` and ``nsenter``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kits.needed import needed

_READY = "ready"
_HOLD = """
set -e
ip link set lo up
echo "$1" > /proc/sys/kernel/hostname
if [ -n "$2" ]; then
  mount --bind "$2/hosts" /etc/hosts
  mount --bind "$2/nsswitch.conf" /etc/nsswitch.conf
fi
echo ready
exec cat
"""
_PATIENCE = 60
_LISTENING = "0A"


class NoNamespaces(Exception):
    """This machine does not let us make hosts; ``args[0]`` says why."""


class _Held:
    """Namespaces of their own, and the process that keeps them."""

    def __init__(self, name: str, files: Path | None) -> None:
        self.name = name
        command = ["unshare", "--net", "--uts", "--mount", "--propagation=private", "--"]
        command += ["sh", "-c", _HOLD, "sh", name, str(files or "")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout
        line = self._process.stdout.readline().strip()
        if line != _READY:
            rest = self._process.communicate(timeout=_PATIENCE)[0]
            raise NoNamespaces(f"{line} {rest}".strip())

    @property
    def pid(self) -> int:
        return self._process.pid

    def ip(self, *commands: str) -> None:
        enter = ["nsenter", f"--target={self.pid}", "--net", "ip", "-batch", "-"]
        text = "".join(f"{command}\n" for command in commands)
        done = subprocess.run(enter, input=text, capture_output=True, text=True, timeout=_PATIENCE)
        if done.returncode != 0:
            raise NoNamespaces(f"{self.name}: ip {'; '.join(commands)}: {done.stderr.strip()}")

    def close(self) -> None:
        self._process.kill()
        with self._process:
            self._process.wait(_PATIENCE)


class Host(_Held):
    """A machine with an interface, ``eth0`` and so on, in each of its networks."""

    def __init__(self, name: str, number: int, files: Path) -> None:
        files.mkdir()
        self._hosts_file = files / "hosts"
        self._hosts_file.touch()
        (files / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
        super().__init__(name, files)
        self.number = number
        self.interfaces: list[int] = []

    @property
    def address(self) -> str:
        return self.address_in(self.interfaces[0])

    @property
    def address6(self) -> str:
        return f"fd00:{self.interfaces[0]}::{self.number}"

    def address_in(self, network: int) -> str:
        return f"10.77.{network}.{self.number}"

    def enter(self, directory: Path) -> list[str]:
        """What to put in front of a command that is to run here, in ``directory``."""
        inside = ["nsenter", f"--target={self.pid}", "--net", "--uts", "--mount", "--"]
        return [*inside, "sh", "-c", 'cd "$0" && exec "$@"', str(directory)]

    def listens(self, port: int) -> bool:
        rows = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in Path(f"/proc/{self.pid}/net/{table}").read_text().splitlines()[1:]
        ]
        return any(row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port for row in rows)

    def get(self, url: str) -> str:
        """What is served here to who asks from here; empty where nothing is."""
        program = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"
        command = ["nsenter", f"--target={self.pid}", "--net", sys.executable, "-c", program, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
        return done.stdout if done.returncode == 0 else ""

    def resolve(self, names: Mapping[str, str]) -> None:
        """What names mean here, and nothing else does: there is no name server."""
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
        lines += [f"{address} {name}" for name, address in names.items()]
        self._hosts_file.write_text("\n".join(lines) + "\n")  # in place: the file is mounted

    def default_route(self) -> None:
        """As most machines have one."""
        self.ip("route add default dev eth0")


class Lan:
    """Hosts and the networks between them: host N has address 10.77.K.N in network K, and fd00:K::N.

    Names are resolved by each host's own hosts file alone, to the addresses in its first network. On the hosts
    ``debian`` the host's own name is that of 127.0.1.1, as Debian's installer does it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: list[_Held] = []
        self._networks: set[int] = set()
        self._debian: set[str] = set()
        self._switch: _Held | None = None
        self.hosts: list[Host] = []

    def add(self, *names: str, debian: Sequence[str] = (), networks: Sequence[int] = (1,)) -> list[Host]:
        """New hosts, which find each other by name. One with the name of another takes its place there."""
        for name in names:
            number = len(self.hosts) + 1
            host = Host(name, number, self._directory / f"{number}-{name}")
            self._held.append(host)
            self.hosts.append(host)
            for network in networks:
                self._plug(host, network)
            if name in debian:
                self._debian.add(name)
        for host in self.hosts:
            own = {host.name: "127.0.1.1"} if host.name in self._debian else {}
            host.resolve({other.name: other.address for other in self.hosts} | own)
        return self.hosts[-len(names) :]

    def cut(self, host: Host) -> None:
        """Take down the links of a host at the switch: packets are lost, and nobody is told."""
        self._set_links(host, "down")

    def mend(self, host: Host) -> None:
        self._set_links(host, "up")

    def close(self) -> None:
        for held in self._held:
            held.close()

    @staticmethod
    def _port(host: Host, network: int) -> str:
        """The switch's interface to a host: names of hosts may be longer than those of interfaces."""
        return f"port{host.number}-{network}"

    def _set_links(self, host: Host, state: str) -> None:
        assert self._switch
        self._switch.ip(*(f"link set {self._port(host, network)} {state}" for network in host.interfaces))

    def _plug(self, host: Host, network: int) -> None:
        if self._switch is None:
            self._switch = _Held("switch", None)
            self._held.append(self._switch)
        if network not in self._networks:
            self._networks.add(network)
            self._switch.ip(f"link add lan{network} type bridge", f"link set lan{network} up")
        port, interface = self._port(host, network), f"eth{len(host.interfaces)}"
        self._switch.ip(
            f"link add {port} type veth peer name {interface} netns {host.pid}",
            f"link set {port} master lan{network}",
            f"link set {port} up",
        )
        host.interfaces.append(network)
        host.ip(
            f"addr add {host.address_in(network)}/24 dev {interface}",
            f"addr add fd00:{network}::{host.number}/64 dev {interface} nodad",
            f"link set {interface} up",
        )


def require(directory: Path) -> None:
    """Or the test is skipped; CI fails."""
    needed(why_not(directory))


def why_not(directory: Path) -> str:
    """Why hosts cannot be made on this machine; "" when they can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    for program in ("ip", "unshare", "nsenter"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: iproute2 and util-linux)"
    lan = Lan(directory)
    try:
        lan.add("one", "two")
    except NoNamespaces as error:
        return f"no namespaces: {error}"
    finally:
        lan.close()
    return ""
