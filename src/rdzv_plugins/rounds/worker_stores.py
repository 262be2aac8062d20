"""The workers' stores of a job: a fresh one in every round, served by torch or by the native server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.native.limits import StoreLimits, raise_file_limit
from rdzv_plugins.kvstore.sockets.listening import PortAllocator, bind
from rdzv_plugins.options import WorkerStoreOptions
from rdzv_plugins.runtime import SYSTEM, Runtime
from rdzv_plugins.security.certificates import NodeCertificates
from rdzv_plugins.security.job_token import AcceptedToken, say_open

logger = logging.getLogger(__name__)


Serve = Callable[..., Any]
"""Makes a ``StoreServer``, from the same arguments. A simulation has another."""


def native_server(**settings: Any) -> Any:
    """The ``Serve`` of this process."""
    from rdzv_plugins.kvstore.native.server import StoreServer

    raise_file_limit()
    return StoreServer(**settings)


class WorkerStores:
    """Serves one store at a time at most. Use from one thread at a time."""

    def __init__(
        self,
        options: WorkerStoreOptions,
        *,
        timeout: float,
        ports: PortAllocator | None = None,
        shared_by: str = "",
        tokens: Sequence[AcceptedToken] = (),
        admit: Literal["anyone", "user"] = "anyone",
        tls: NodeCertificates | None = None,
        serve: Serve = native_server,
        runtime: Runtime = SYSTEM,
    ) -> None:
        """``timeout`` (seconds) applies to the object that ``store=torch`` needs for its server.

        ``ports`` are those of ``options`` if others take turns at them, too. ``shared_by``: the run whose nodes these
        are, if there are several; it is then reported if anybody can take part. The native store lets in whoever proves
        one of the ``tokens``; without them, ``admit`` says who may connect: anyone, or only processes of this user on
        this machine. With ``tls`` it speaks nothing else.
        """
        self._tokens, self._admit, self._tls = tokens, admit, tls
        self._serve, self._runtime = serve, runtime
        closed = bool(tokens) or (admit == "user" and tls is None) or (tls is not None and tls.asks_clients)
        self._is_open = bool(shared_by) and not closed
        self._options = options
        self._ports = ports or PortAllocator(options.worker_ports, runtime)
        self._timeout = timeout
        self._server: Any = None
        self._current: Any = None
        self._served = 0

    def open(self, host: str, what: str, *, first: bool = True) -> Any:
        """Serve a new, empty store until ``close()``; returns an object whose ``.port`` is its port.

        It is listening when this returns, so its address can be published. ``host`` is the address that the workers
        will dial: a loopback address is served on loopback only, any other on all interfaces. Raises ``AddressInUse``,
        or ``MissingDependency`` when the native store is not installed. ``first``: the job has had none before, so that
        nobody has said yet whether it is open.
        """
        self.close()
        self._served += 1
        if self._is_open and first and self._served == 1:
            say_open(host)
        self._current = self._native(host, what) if self._options.is_native else self._torch(host, what)
        return self._current

    def close(self) -> None:
        """Cut off the workers of the last store and free its port."""
        current, self._current = self._current, None
        if self._server is not None and current is not None:
            current.close()

    def shutdown(self) -> None:
        """Do as ``close()`` does, and end the server's threads."""
        self.close()
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _torch(self, host: str, what: str) -> Any:
        from rdzv_plugins.kvstore.tcpstore.torch_store import serve

        return serve(host, self._ports, timeout=self._timeout, what=what)

    def _native(self, host: str, what: str) -> Any:
        from rdzv_plugins.kvstore.native.server import native_part

        native_part()  # before a port is taken
        listener = bind(host, self._ports, what, self._runtime)
        name = f"workers-{self._served}"
        if self._server is None:
            self._server = self._serve(
                threads=self._options.store_threads,
                limits=StoreLimits.among(self._options),
                listen_fd=listener.detach(),
                name=name,
                tokens=self._tokens,
                admit=self._admit,
                purpose="workers",
                tls=self._tls,
                runtime=self._runtime,
            )
            keyspace = self._server.first
        else:
            keyspace = self._server.open_keyspace(name, listen_fd=listener.detach())
        where = Endpoint(host, keyspace.port)
        who_waits = "the workers' store is at %s (who waits for what: rdzv status --rdzv-endpoint=%s)"
        logger.debug(who_waits, where, where)
        return keyspace
