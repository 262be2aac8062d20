"""What unmodified scripts get if their job asks for it and their env:// store is the agent's proxy.

With ``worker_transport=unix`` the agent's Unix socket is used, with ``answered_writes=true`` writes return when they
are done. The launcher calls ``install`` in workers of these jobs alone (``run/supervisor/in_worker.py``), before their
program runs and imports torch. Whatever goes wrong here must neither keep torch from being imported nor a job from
being started: the store is then reached by MASTER_ADDR and MASTER_PORT, as without this module, and one line on stderr
says so.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SOCKET = "RDZV_STORE_SOCKET"
"""Where the store of this worker's round listens: a path, or ``@`` and the name of an abstract socket."""
PORT = "RDZV_STORE_PORT"
"""The MASTER_PORT of that store, the node's proxy.

Another launcher started by a worker passes our variables on to workers with a different store; theirs is none of ours.
"""
ANSWERED = "RDZV_STORE_ANSWERED"
"""Set if writes are to return when they are done."""
_RENDEZVOUS = "torch.distributed.rendezvous"

Rendezvous = Iterator[tuple[Any, int, int]]
Handler = Callable[..., Rendezvous]


def install() -> None:
    """Arrange the store of env://, if the agent has a proxy: now, or when torch is imported."""
    if not os.environ.get(PORT):
        return
    imported = sys.modules.get(_RENDEZVOUS)
    if imported is None:
        sys.meta_path.insert(0, _OnImport())
    else:
        _replace_handler(imported)


class _OnImport(MetaPathFinder):
    """Finds torch's module as everybody does, once, and has the handler replaced after it was run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _RENDEZVOUS:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            _replace_handler(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _replace_handler(rendezvous: ModuleType) -> None:
    try:
        handlers = rendezvous._rendezvous_handlers
        if handlers["env"].__module__ != __name__:
            handlers["env"] = _by_the_proxy(handlers["env"])
    except Exception as error:
        _say(f"not supported by this torch ({type(error).__name__}: {error})")


def _by_the_proxy(handler: Handler) -> Handler:
    """Return torch's handler, with the store that it makes arranged."""

    def by_the_proxy(url: str, **options: Any) -> Rendezvous:
        ours = _is_ours()
        path = os.environ.get(SOCKET, "") if ours else ""
        before = None
        if path:
            try:
                before = open_sockets()
            except OSError as error:
                _say(f"no /proc here ({error.strerror})")
        for store, rank, world_size in handler(url, **options):
            if ours:
                _arrange(store, path, before)
            yield store, rank, world_size

    return by_the_proxy


def _arrange(store: Any, path: str, before: frozenset[str] | None) -> None:
    try:
        if os.environ.get(ANSWERED):
            answer_writes(store.port)
        if before is not None:
            move(store, path, before)
    except NotMoved as error:
        _say(str(error))
    except Exception as error:  # for example, a store of another kind: somebody else has replaced the handler, too
        _say(f"{type(error).__name__}: {error}")


def _is_ours() -> bool:
    """Whether env:// leads to the agent's proxy, with this process only as a client."""
    served_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return served_by_agent and os.environ.get(PORT, "") == os.environ.get("MASTER_PORT")


def _say(why: str) -> None:
    where = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    path = os.environ.get(SOCKET, "")
    what = f"uses TCP to the store at {where}, not the Unix socket {path}"
    if not path:
        what = f"does not wait until the store at {where} has what it writes"
    with contextlib.suppress(OSError, ValueError):  # it must not matter if stderr is gone
        print(f"rdzv-plugins: rank {os.environ.get('RANK', '?')} {what}: {why}", file=sys.stderr, flush=True)


_ports: set[int] = set()
_WRITES = ("set", "append", "multi_set", "queue_push")


def answer_writes(port: int) -> None:
    """From now on, in this process, wait for what callers in Python write to the store whose client is at ``port``.

    torch's own callers in C++ are not affected: readers wait for what those set.
    """
    from torch.distributed import Store, TCPStore

    done = bool(_ports)
    _ports.add(port)
    if done:
        return

    def there(store: Store) -> bool:
        lowest = getattr(store, "_underlying_non_prefix_store", store)
        return isinstance(lowest, TCPStore) and lowest.port in _ports

    def answered(write: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(write)
        def written(store: Store, *arguments: Any, **named: Any) -> Any:
            result = write(store, *arguments, **named)
            if there(store):
                store.check([])
            return result

        return written

    for name in _WRITES:
        setattr(Store, name, answered(getattr(Store, name)))


# torch's client connects by TCP only, but once it has greeted it does nothing but send, receive and poll on one
# descriptor. So a greeted connection over the Unix socket takes the place of that descriptor: what torch's client is,
# does and raises stays torch's, even for callers in C++. Linux only, as it reads /proc/self/fd.
#
# It is not a ``Store`` in Python: torch passes only part of the interface on to such a class (behind a ``PrefixStore``,
# ``delete_key``, ``num_keys``, ``list_keys`` and the queues do not reach it), the object in C++ outlives the one in
# Python, and each request would need the GIL, even from torch's threads that watch whether a process hangs. A subclass
# in C++ would need a wheel for each torch version.
_GREETING_S = 5.0
"""The store listens on this machine: it answers at once, or is in trouble."""
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_CREDENTIALS = "=iII"  # struct ucred: pid, uid, gid


class NotMoved(OSError):
    """The client continues to use TCP; ``str()`` says why."""


def open_sockets() -> frozenset[str]:
    """What /proc calls the sockets that this process has open. Raises ``OSError`` if there is no /proc."""
    return frozenset(_sockets())


def move(store: Any, path: str, before: frozenset[str]) -> None:
    """Have ``store``, a ``TCPStore`` that is only a client, talk to the same store over the Unix socket ``path``.

    ``@name`` is an abstract socket. ``before`` is what ``open_sockets`` returned before ``store`` was made, and nobody
    has used ``store`` since. Clones of ``store`` connect by TCP. Raises ``NotMoved``; ``store`` is then unchanged.
    """
    try:
        with _connect(path) as connection:
            descriptor = _client(store.port, before)
            os.set_blocking(connection.fileno(), os.get_blocking(descriptor))
            os.dup2(connection.fileno(), descriptor, inheritable=os.get_inheritable(descriptor))
    except NotMoved:
        raise
    except OSError as error:
        raise NotMoved(error.strerror or str(error)) from None


def _connect(path: str) -> socket.socket:
    """A greeted connection. Raises ``OSError``."""
    from rdzv_plugins.kvstore.tcpstore.wire import NotAStore, greet  # not before torch is there

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_GREETING_S)
        connection.connect("\0" + path[1:] if path.startswith("@") else path)
        owner, user = _owner(connection), os.geteuid()
        if owner not in (0, user) and user != 0:  # abstract names are free for anyone to take
            raise NotMoved(f"it belongs to user {owner}, not this one ({user})")
        try:
            greet(connection)
        except TimeoutError:
            raise NotMoved(f"no answer within {_GREETING_S:g} s") from None
        except NotAStore:
            raise NotMoved("what answers is not a store") from None
        return connection
    except BaseException:
        connection.close()
        raise


def _owner(connection: socket.socket) -> int:
    """The user whose process listens at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_CREDENTIALS))
    return int(struct.unpack(_CREDENTIALS, credentials)[1])


def _client(port: int, before: frozenset[str]) -> int:
    """The descriptor of the client's TCP connection to ``port``. Raises ``NotMoved`` if that is not certain."""
    found = [
        descriptor for name, descriptor in _sockets().items() if name not in before and _leads_to(descriptor, port)
    ]
    if len(found) != 1:
        raise NotMoved(f"{len(found)} new connections to port {port}, not one")
    if _has_input(found[0]):
        raise NotMoved("torch's connection is already in use")
    return found[0]


def _sockets() -> dict[str, int]:
    """The open sockets by their names in /proc, which are unique."""
    sockets = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:  # closed in the meantime
            continue
        if name.startswith("socket:"):
            sockets[name] = int(entry)
    return sockets


def _leads_to(descriptor: int, port: int) -> bool:
    try:
        with _borrowed(descriptor) as connection:
            return connection.family in _INTERNET and bool(connection.getpeername()[1] == port)
    except OSError:  # no socket any more, or it is listening, or not connected yet
        return False


def _has_input(descriptor: int) -> bool:
    try:
        with _borrowed(descriptor) as connection:
            connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """The socket of a descriptor, which stays open. Raises ``OSError`` if it is no longer one."""
    borrowed = socket.socket(fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()
