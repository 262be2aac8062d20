"""What listens at an endpoint: a TCPStore, torch's or the native one, whose it is, or something else.

A store's node writes a key that says who serves it before anything else. Where something other listens than a node was
told, a backend that knows what it is says so at once. Works without torch: ``rdzv status`` asks here, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.json import decode, encode

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AddressInUse, EndpointUnreachable, RunIdMismatch
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.sockets.reach import dial
from rdzv_plugins.kvstore.tcpstore import wire
from rdzv_plugins.runtime import MSG_PEEK, SYSTEM, Runtime, gaierror

if TYPE_CHECKING:
    import socket

_AT_ONCE_S = 1.0
"""Seconds after which a client without an answer asks whom it has reached: most servers wait for more to read."""
_WOKEN_S = 0.5
"""Seconds within which a server answers that stood still and has just told somebody else what it is."""
_BEGINS_S, _LOOK_AGAIN_S = 0.3, 0.02
"""Seconds that a node may take from listening to saying whose its store is, and how often to look meanwhile."""
_PROBE_S = 2.0
SAME_BACKEND = "Start all nodes of a job with the same --rdzv-backend, and give each job an endpoint of its own."

Said = TypeVar("Said")
Stranger = Callable[[], EndpointUnreachable | None]
"""Returns the error that says what listens there, if that is unexpected and known. Takes some seconds at most."""


def unknown() -> None:
    """A ``Stranger`` for when no backend can be asked."""


def stranger_at(request: Request, endpoint: Endpoint) -> EndpointUnreachable | None:
    """A ``Stranger`` that asks the installed backends."""
    what = request.whose(str(endpoint))
    return EndpointUnreachable(_told(request, endpoint, what), remedy=SAME_BACKEND) if what else None


@contextlib.contextmanager
def telling_whose(request: Request, endpoint: Endpoint) -> Iterator[None]:
    """Wrap the binding of ``endpoint``: an ``AddressInUse`` then says what is served there, if a backend knows."""
    try:
        yield
    except AddressInUse as error:
        what = request.whose(str(endpoint))
        if not what:
            raise
        raise AddressInUse(f"{error}; {_told(request, endpoint, what)}", remedy=SAME_BACKEND) from None


def refuse_others(
    store: Any, keys: Sequence[str], request: Request, endpoint: Endpoint, runtime: Runtime = SYSTEM
) -> None:
    """Raise what is known about the owner of ``store``, a client of ``endpoint``, if it has none of ``keys``."""

    def has_any() -> bool:
        return any(store.check([key]) for key in keys)

    if not once_begun(has_any, runtime):  # asking around costs more than all the rest of joining
        known = stranger_at(request, endpoint)
        if known is not None and not has_any():  # its node had only just begun to serve
            raise known


def once_begun(said: Callable[[], Said], runtime: Runtime) -> Said:
    """What a store says of itself, or nothing yet: its node may have begun to serve just now, and is waited for."""
    deadline = runtime.monotonic() + _BEGINS_S
    while not (found := said()) and runtime.monotonic() < deadline:
        runtime.sleep(_LOOK_AGAIN_S)
    return found


def _told(request: Request, endpoint: Endpoint, what: str) -> str:
    return f"at {endpoint} is {what}; this node was given --rdzv-backend={request.backend}"


def look_if_silent(
    connection: socket.socket,
    stranger: Stranger,
    torchs: EndpointUnreachable | None = None,
    runtime: Runtime = SYSTEM,
) -> None:
    """Raise what ``stranger`` knows if a greeting is not answered at once. Consumes nothing of the answer.

    ``torchs``, for who has greeted a native store, is raised if nothing is known and torch's listens there.
    """
    if not _answers(connection, _AT_ONCE_S):
        error = stranger()
        if error is None and torchs is not None and _is_torch_store(connection, runtime):
            error = torchs
        if error is not None and not _answers(connection, _WOKEN_S):
            raise error


def _answers(connection: socket.socket, patience: float) -> bool:
    """Whether the other side answers in time or has hung up."""
    limit = connection.gettimeout()
    connection.settimeout(patience if limit is None else min(limit, patience))
    try:
        connection.recv(1, MSG_PEEK)
    except TimeoutError:
        return False
    finally:
        connection.settimeout(limit)
    return True


def _is_torch_store(connection: socket.socket, runtime: Runtime = SYSTEM) -> bool:
    """Whether the other side greets torch's clients, and yet leaves ``connection`` without an answer.

    torch's server takes the greeting of a native store's client for the beginning of something longer, and waits. A
    native store that was only slow for a while also answers torch's greeting, but then the other one as well.
    """
    patience = min(_PROBE_S, connection.gettimeout() or _PROBE_S)
    try:
        host, port = connection.getpeername()[:2]
        with dial(host, port, patience, runtime=runtime) as probe:
            wire.greet(probe)
    except OSError:
        return False
    connection.settimeout(patience)
    try:
        return connection.recv(1, MSG_PEEK) == b""
    except TimeoutError:
        return True
    except OSError:
        return False


def greet_store(connection: socket.socket, stranger: Stranger = unknown) -> str:
    """A ``Greeting`` that asks whether this is a store. ``stranger`` is asked when something else listens there."""
    try:
        wire.greet(connection, on_sent=lambda: look_if_silent(connection, stranger))
    except TimeoutError:
        return "something accepts connections there, but does not answer as a torch TCPStore"
    except wire.NotAStore as error:
        if known := stranger():
            raise known from None
        host, port = connection.getpeername()[:2]
        raise EndpointUnreachable(
            f"{Endpoint(host, port)} is not a torch TCPStore: it answered {error.args[0]!r}",
            remedy="Another program uses that port. Choose another port, the same on every node.",
        ) from None
    except ConnectionError:  # a store just ending or starting; or HTTP, which finds a line's end in the greeting
        if known := stranger():
            raise known from None
        return "something accepts connections there and hangs up"
    return ""


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
        return encode(self).decode()


def hello_of(request: Request, nnodes: int | str, torch: str = "", runtime: Runtime = SYSTEM) -> Hello:
    """Describe this process as the one that serves."""
    return Hello(request.run_id, nnodes, runtime.gethostname(), runtime.getpid(), torch)


def hello_key(backend: str) -> str:
    """The key of the hello, different for each backend."""
    return f"rdzv_plugins.{backend}.hello"


def parse_hello(text: bytes) -> Hello:
    """Parse a ``Hello`` from its text. Raises ``ValueError`` if it is not one."""
    try:
        return decode(text, type=Hello)
    except (ValueError, RecursionError):
        raise ValueError(f"it does not say who it is: {text[:80]!r}") from None


def greeted(host: str, port: int, timeout: float, runtime: Runtime = SYSTEM) -> socket.socket:
    """A connection to a store that has answered. ``timeout`` (seconds) applies to each step.

    Raises ``OSError``, including ``NotAStore``.
    """
    with contextlib.ExitStack() as unless_kept:
        connection = unless_kept.enter_context(dial(host, port, timeout, runtime=runtime))
        wire.greet(connection)
        unless_kept.pop_all()
        return connection


class StoreReader:
    """Reads keys of a TCPStore. A context manager; for use by one thread.

    ``timeout`` (seconds) applies to each step. Each call raises ``OSError``, including ``NotAStore``.
    """

    def __init__(self, endpoint: Endpoint, timeout: float, runtime: Runtime = SYSTEM) -> None:
        self._connection = greeted(endpoint.host, endpoint.port, timeout, runtime)

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
        why, remedy = f"was not written by this version: {error}", "Ask with the version of the job."
    else:
        return
    raise EndpointUnreachable(f"{endpoint} {why}", remedy=remedy)


def require_run(request: Request, endpoint: Endpoint, hello: Hello) -> None:
    """Raise ``RunIdMismatch`` if another run was requested."""
    if request.is_named and request.run_id != hello.run_id:
        raise RunIdMismatch(
            f"{endpoint} serves run {hello.run_id!r}, not {request.run_id!r}", remedy=f"Give --rdzv-id={hello.run_id}."
        )
