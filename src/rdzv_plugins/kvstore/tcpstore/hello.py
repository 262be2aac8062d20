"""Who serves a TCPStore at an endpoint: a key that its node writes before anything else, for others to read.

Works without torch: ``rdzv status`` and nodes of other backends read it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import asdict

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, RunIdMismatch
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.sockets.reach import dial
from rdzv_plugins.kvstore.tcpstore import wire
from rdzv_plugins.runtime import SYSTEM, Runtime, gaierror

_TYPES: dict[str, type | tuple[type, ...]] = {"run_id": str, "nnodes": (int, str), "host": str, "pid": int}


class Hello(Struct, frozen=True):
    """The node that serves the store, and its job."""

    run_id: str
    nnodes: int | str
    """The job's --nnodes as given: a number, or ``MIN:MAX``."""
    host: str
    pid: int
    torch: str = ""
    """The version of torch on that node, if known."""

    def __str__(self) -> str:
        return f"{self.host} (pid {self.pid})"

    @property
    def text(self) -> str:
        """The hello as the value of its key."""
        return json.dumps(asdict(self))


def hello_of(request: Request, nnodes: int | str, torch: str = "", runtime: Runtime = SYSTEM) -> Hello:
    """Describe this process as the one that serves."""
    return Hello(request.run_id, nnodes, runtime.gethostname(), runtime.getpid(), torch)


def hello_key(backend: str) -> str:
    """The key of the hello, different for each backend."""
    return f"rdzv_plugins.{backend}.hello"


def parse_hello(text: bytes) -> Hello:
    """Parse a ``Hello`` from its text. Raises ``ValueError`` if it is not one."""
    data = json.loads(text)
    if not isinstance(data, dict) or not all(isinstance(data.get(name), kind) for name, kind in _TYPES.items()):
        raise ValueError(f"it does not say who it is: {text[:80]!r}")
    return Hello(**{name: data[name] for name in _TYPES}, torch=str(data.get("torch") or ""))


class StoreReader:
    """Reads keys of a TCPStore. A context manager; for use by one thread.

    ``timeout`` (seconds) applies to each step. Each call raises ``OSError``, including ``NotAStore``.
    """

    def __init__(self, endpoint: Endpoint, timeout: float, runtime: Runtime = SYSTEM) -> None:
        self._connection = dial(endpoint.host, endpoint.port, timeout, runtime=runtime)
        try:
            wire.greet(self._connection)
        except BaseException:
            self._connection.close()
            raise

    @property
    def is_here(self) -> bool:
        """Whether the store is served on this machine."""
        return bool(self._connection.getsockname()[0] == self._connection.getpeername()[0])

    def __enter__(self) -> StoreReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def held(self, key: str) -> bytes | None:
        """The value of a key that is never deleted; None if it is absent."""
        return wire.get(self._connection, key) if wire.check(self._connection, key) else None

    def hello(self, backend: str) -> Hello | None:
        """The hello of the node that serves the store for ``backend``. Also raises ``ValueError``."""
        text = self.held(hello_key(backend))
        return None if text is None else parse_hello(text)


def served_by(backend: str, endpoint: Endpoint, timeout: float) -> str:
    """Whose store of that backend is served there, in words for ``Backend.recognise``, or "".

    Raises as a reader does.
    """
    with StoreReader(endpoint, timeout) as reader:
        hello = reader.hello(backend)
    if hello is None:
        return ""
    return f"the rendezvous of run {hello.run_id!r} by {backend}, which {hello} serves for --nnodes={hello.nnodes}"


@contextlib.contextmanager
def reading(endpoint: Endpoint, timeout: float) -> Iterator[StoreReader]:
    """A reader for ``Backend.status``; raises ``EndpointUnreachable``, which says why nothing can be read."""
    try:
        with StoreReader(endpoint, timeout) as reader:
            yield reader
    except gaierror as error:
        why, remedy = f"does not resolve: {error.strerror}", "Check the name, or give an IP address."
    except wire.NotAStore:
        why, remedy = "is not a TCPStore", "Check address and port, or give another --rdzv-backend."
    except TimeoutError:
        why, remedy = f"does not answer as a TCPStore within {timeout:g} s", "Check address and port."
    except OSError as error:
        why = f"cannot be reached: {(error.strerror or str(error)).lower()}"
        remedy = "Check address and port, and that the job still runs."
    except (ValueError, TypeError, KeyError) as error:
        why, remedy = f"holds something else than this version writes: {error}", "Ask with the version of the job."
    else:
        return
    raise EndpointUnreachable(f"{endpoint} {why}", remedy=remedy)


def require_run(request: Request, endpoint: Endpoint, hello: Hello) -> None:
    """Raise ``RunIdMismatch`` if another run was requested."""
    if request.is_named and request.run_id != hello.run_id:
        raise RunIdMismatch(
            f"{endpoint} serves run {hello.run_id!r}, not {request.run_id!r}", remedy=f"Give --rdzv-id={hello.run_id}."
        )
