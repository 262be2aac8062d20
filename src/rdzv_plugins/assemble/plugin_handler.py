"""Handlers of plug-ins: torch's own, and objects like them, get what else is asked of one; each answer is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from rdzv_plugins.assemble.border import blaming, is_of_torch, misfit
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.interfaces import Failure, RendezvousHandler, RendezvousInfo, TorchHandler


class AdaptedHandler(RendezvousHandler):
    """A handler of torch, or an object like one, which knows of nothing but its rounds."""

    def __init__(self, inner: TorchHandler) -> None:
        self._inner = inner

    def get_backend(self) -> str:
        return self._inner.get_backend()

    @property
    def use_agent_store(self) -> bool:
        return self._inner.use_agent_store

    def next_rendezvous(self) -> RendezvousInfo:
        return self._inner.next_rendezvous()

    def is_closed(self) -> bool:
        return self._inner.is_closed()

    def set_closed(self) -> None:
        self._inner.set_closed()

    def num_nodes_waiting(self) -> int:
        return self._inner.num_nodes_waiting()

    def get_run_id(self) -> str:
        return self._inner.get_run_id()

    def shutdown(self) -> bool:
        return self._inner.shutdown()


def checked_handler(created: TorchHandler, entry: Entry) -> RendezvousHandler:
    """The handler that a plug-in has created, with its answers checked. A plug-in answers for its own."""
    inner = created if isinstance(created, RendezvousHandler) else AdaptedHandler(created)
    return _CHECKED(inner, entry)


class _Asks:
    """Asks a plug-in's handler."""

    def __init__(self, inner: RendezvousHandler, entry: Entry) -> None:
        self._inner, self._entry = inner, entry

    def _asked(self, name: str, ask: Callable[[RendezvousHandler], Any]) -> Any:
        """What a method of the handler returns; torch's errors are in the contract."""
        where = f"{name}() of its handler"
        with blaming(self._entry, f"in {where}", but=_is_expected):
            answer = ask(self._inner)
        is_right, wanted = _ANSWERS.get(name, (lambda _: True, ""))
        if not is_right(answer):
            raise misfit(self._entry, where, answer, wanted)
        return answer


def _asking(name: str, member: object) -> object:
    """The method, or the property, by which ``_Asks`` asks for a member of a handler."""
    get = attrgetter(name)
    if callable(member):
        return lambda self, *arguments: self._asked(name, lambda inner: get(inner)(*arguments))
    return property(lambda self: self._asked(name, get))


def _is_expected(error: Exception) -> bool:
    return is_of_torch(error) or isinstance(error, TimeoutError)


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _are_texts(values: Any) -> bool:
    return (
        isinstance(values, Sequence) and not isinstance(values, str) and all(isinstance(each, str) for each in values)
    )


def _is_environment(value: Any) -> bool:
    return isinstance(value, Mapping) and _are_texts([*value, *value.values()])


def _is_round(value: Any) -> bool:
    if not all(hasattr(value, each) for each in ("store", "rank", "world_size", "bootstrap_store_info")):
        return False
    where = value.bootstrap_store_info
    found = where is None or (isinstance(where.master_addr, str) and isinstance(where.master_port, int))
    ranks = isinstance(value.rank, int) and isinstance(value.world_size, int) and 0 <= value.rank < value.world_size
    return found and ranks and (value.store is None or hasattr(value.store, "wait"))  # a node alone may do without


_BOOL = (_is(bool), "True or False")
_TEXTS = (_are_texts, "a sequence of texts")
_ANSWERS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "use_agent_store": _BOOL,
    "next_rendezvous": (_is_round, "a RendezvousInfo with a store and ranks"),
    "is_closed": _BOOL,
    "num_nodes_waiting": (_is(int), "a number"),
    "get_run_id": (_is(str), "a text"),
    "first_failure": (_is(Failure, type(None)), "a Failure or None"),
    "must_rejoin": _BOOL,
    "count_restart": _TEXTS,
    "check_by": _BOOL,
    "waits_for": (_is(str), "a text"),
    "peer_lost": _BOOL,
    "working_peers": _TEXTS,
    "lost_peers": _TEXTS,
    "worker_env": (_is_environment, "a mapping of texts"),
}
"""What the methods of a handler return, and how that is called."""

_MEMBERS = {name: member for name, member in vars(RendezvousHandler).items() if not name.startswith("_")}
_CHECKED: Callable[[RendezvousHandler, Entry], RendezvousHandler] = type(
    "CheckedHandler", (_Asks, RendezvousHandler), {name: _asking(name, member) for name, member in _MEMBERS.items()}
)
"""A handler each of whose members asks the plug-in's: made of the contract, so it has all that this asks of one."""
