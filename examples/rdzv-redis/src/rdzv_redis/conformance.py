"""A Redis for the conformance suite of rdzv-plugins: ``rdzv conformance redis``, and the tests of this package."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Literal

from rdzv_plugins.errors import MissingDependency, RdzvError
from rdzv_plugins.testing import Harness, ServerProcess, free_port

_ATTEMPTS = 3
_PORT_TAKEN = "Address already in use"
_NOTHING: Mapping[str, str] = MappingProxyType({})


class RedisHarness(Harness):
    """One Redis for all jobs, which it keeps apart by their ids. It keeps its data when it is killed."""

    backend = "redis"
    kind: ClassVar[Literal["state", "coordination", "handler"]] = "coordination"
    conf = MappingProxyType(
        {
            "ttl": "4",
            "outage_timeout": "10",
            "timeout": "120",
            "last_call_timeout": "2",
            "linger": "2",
            "allow_same_host": "true",  # all nodes of the suite are on one machine
        }
    )
    wrong_endpoints = ("a b", "", "127.0.0.1:99999", "fe80::1:2:3", "http://127.0.0.1", "redis://me:secret@h", "a,b")

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._server: ServerProcess | None = None

    def start(self) -> None:
        """Start redis-server. Raises ``RdzvError`` if it is not installed, or does not start."""
        self._directory = Path(tempfile.mkdtemp(prefix="rdzv-redis-"))
        self.service = self._server = start_redis(self._directory)

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def endpoint(self, directory: Path) -> str:
        """The same for every job."""
        assert self._server is not None, "the harness was not started"
        return f"127.0.0.1:{self._server.port}"


def start_redis(directory: Path, settings: Mapping[str, str] = _NOTHING, *, keeps_data: bool = True) -> ServerProcess:
    """A redis-server that answers, with its data and its log in ``directory``; whoever starts it kills it.

    ``settings`` are of redis.conf, and come on top. Its port is chosen here; it is one of TLS alone where ``port`` is
    given as "0". Raises ``RdzvError`` if there is none, or it does not start.
    """
    if shutil.which("redis-server") is None:
        raise MissingDependency(
            "the program redis-server is not installed",
            remedy="Install it: on Debian and Ubuntu, apt-get install redis-server.",
        )
    for attempt in range(_ATTEMPTS):  # somebody else may take a port between its choice and its use
        server = redis_process(directory, free_port(), settings, keeps_data=keeps_data)
        try:
            server.start()
        except RdzvError as error:
            if _PORT_TAKEN not in str(error) or attempt == _ATTEMPTS - 1:
                raise
        else:
            return server
    raise AssertionError


def redis_process(directory: Path, port: int, settings: Mapping[str, str], *, keeps_data: bool) -> ServerProcess:
    """A redis-server at that port of loopback, not started yet."""
    port_of = "tls-port" if settings.get("port") == "0" else "port"
    given = {
        port_of: str(port),
        "bind": "127.0.0.1",
        "dir": str(directory),
        "save": "",
        "appendonly": "yes" if keeps_data else "no",
        "appendfsync": "no",  # the machine lives on when Redis is killed, and may be busy with its disk
        "daemonize": "no",
        **settings,
    }
    # on the command line of no process, where others could read a password
    file = directory / "redis.conf"
    file.touch(0o600)
    file.write_text(
        "".join(f'{name} "{value}"\n' if not value else f"{name} {value}\n" for name, value in given.items())
    )
    return ServerProcess(
        ["redis-server", str(file)],
        port,
        log=directory / "log",
        keeps_data=keeps_data,
        ready=None if port_of == "tls-port" else lambda: _answers(port),
    )


def _answers(port: int) -> bool:
    """Also if it only says that it wants a password; not while it loads its data."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(100).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False
