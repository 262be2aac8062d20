"""What unmodified scripts get if their job asks for it and their env:// store is the agent's proxy.

With ``worker_transport=unix`` the agent's Unix socket is used, with ``answered_writes=true`` writes return when they
are done. The launcher calls ``install`` in workers of these jobs alone (``run/keeper/in_worker.py``), before their
program runs and imports torch. Whatever goes wrong here must neither keep torch from being imported nor a job from
being started: the store is then reached by MASTER_ADDR and MASTER_PORT, as without this module, and one line on stderr
says so.
"""

from __future__ import annotations

import contextlib
import functools
import os
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
        _say(f"this torch is not prepared for it ({type(error).__name__}: {error})")


def _by_the_proxy(handler: Handler) -> Handler:
    """Return torch's handler, with the store that it makes arranged."""

    def by_the_proxy(url: str, **options: Any) -> Rendezvous:
        ours = _is_ours()
        path = os.environ.get(SOCKET, "") if ours else ""
        before = None
        if path:
            from rdzv_plugins.kvstore.tcpstore.unix_transport import open_sockets

            try:
                before = open_sockets()
            except OSError as error:
                _say(f"there is no /proc here ({error.strerror})")
        for store, rank, world_size in handler(url, **options):
            if ours:
                _arrange(store, path, before)
            yield store, rank, world_size

    return by_the_proxy


def _arrange(store: Any, path: str, before: frozenset[str] | None) -> None:
    from rdzv_plugins.kvstore.tcpstore.unix_transport import NotMoved, move

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
    what = f"reaches the store at {where}, not by the Unix socket {path}"
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
