"""The border to plug-ins: what a backend's functions and objects return or raise is checked here, and nowhere behind.

Whatever is wrong is told with the plug-in's distribution, the method and the value. A session that has broken the
contract once counts as lost, and no other is opened: this node ends, and the others see it go.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from rdzv_plugins.errors import (
    BrokenPlugin,
    ConnectionLost,
    EndpointUnreachable,
    PluginError,
    RdzvError,
    is_signal,
)
from rdzv_plugins.interfaces import Created, Failure, RendezvousBackend, RendezvousHandler, Token, TorchHandler
from rdzv_plugins.registry.catalog import Entry

if TYPE_CHECKING:
    from rdzv_plugins.coordination import (
        CoordinationBackend,
        Event,
        KeyValue,
        OnEvents,
        Session,
        SeveralServices,
        Watch,
    )

logger = logging.getLogger(__name__)

T = TypeVar("T")


@contextmanager
def blaming(entry: Entry, when: str, *, but: Callable[[Exception], bool] = lambda _: False) -> Iterator[None]:
    """Surround a call of a plug-in's function; errors that it raises on purpose are passed on unchanged.

    So are those for which ``but`` is true. Raises ``MissingDependency`` if one of its imports is not installed, and
    ``BrokenPlugin`` for anything else.
    """
    try:
        yield
    except RdzvError:
        raise
    except Exception as error:
        if is_signal(error) or but(error):
            raise
        missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if not missing or missing == entry.record.value.partition(".")[0]:
            raise _blame(entry, when, error) from error
        raise entry.lacks(missing) from error


def checked(created: Created, entry: Entry) -> Created:
    """What a backend has created, its answers checked; a handler of torch as one of ours."""
    if isinstance(created, RendezvousHandler):
        return _CheckedHandler(created, entry)
    if isinstance(created, TorchHandler):
        return _CheckedTorchHandler(created, entry)
    from rdzv_plugins.coordination import CoordinationBackend

    if isinstance(created, CoordinationBackend):
        return CheckedCoordination(created, entry)
    return CheckedState(created, entry) if isinstance(created, RendezvousBackend) else created


class _Checked:
    """Has all attributes of ``inner``, also those that the contract does not know."""

    def __init__(self, inner: Any, entry: Entry) -> None:
        self._inner, self._entry = inner, entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def name(self) -> str:
        """The name of the backend."""
        return str(self._inner.name)


class CheckedState(_Checked):
    """A ``RendezvousBackend``."""

    _inner: RendezvousBackend

    def get_state(self) -> tuple[bytes, Token] | None:
        return self._asked("get_state", self._inner.get_state, 2, "(the state as bytes, its token) or None")

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        wanted = "(the state as bytes, its token, whether it was written) or None"
        return self._asked("set_state", lambda: self._inner.set_state(state, token), 3, wanted)

    def _asked(self, method: str, ask: Callable[[], T], length: int, wanted: str) -> T:
        # torch's keep-alive tries again after an error of a file or a socket, or one of torch's
        with blaming(self._entry, f"in {method}()", but=lambda error: _is_of_system(error) or is_of_torch(error)):
            answer = ask()
        held: Any = answer
        right = isinstance(held, tuple) and len(held) == length and isinstance(held[0], bytes)
        if held is not None and not (right and (length == 2 or isinstance(held[2], bool))):
            raise misfit(self._entry, method, held, wanted)
        return answer


class CheckedCoordination(_Checked):
    """A ``CoordinationBackend``. As thread-safe as that is."""

    _inner: CoordinationBackend

    @property
    def hosts_service(self) -> bool:
        return bool(self._inner.hosts_service)

    @property
    def several(self) -> SeveralServices | None:
        """The same backend, if its sessions are at one of several services."""
        from rdzv_plugins.coordination import SeveralServices

        return self._inner if isinstance(self._inner, SeveralServices) else None

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> Session:
        lost = _Losing(self._entry, on_lost)
        try:
            with blaming(self._entry, "in open_session()", but=_is_of_system):
                session = self._inner.open_session(ttl, on_lost=lost, timeout=timeout)
        except TimeoutError:
            raise
        except OSError as error:  # of the network: this says nothing of the plug-in, but what the contract says
            raise EndpointUnreachable(str(_blame(self._entry, "in open_session()", error))) from error
        except (PluginError, ConnectionLost) as error:
            fault = error if isinstance(error, PluginError) else error.__cause__
            if isinstance(fault, PluginError):
                raise _labelled(self._entry, fault) from fault.__cause__
            raise
        if missing := [each for each in _SESSION if not hasattr(session, each)]:
            raise misfit(self._entry, "open_session", session, f"a Session: it has no {missing[0]}")
        if not isinstance(session.ttl, int | float) or isinstance(session.ttl, bool):
            raise misfit(self._entry, "ttl of its session", session.ttl, "a number of seconds")
        return CheckedSession(session, self._entry, lost)

    def close(self) -> None:
        """Close it; an error is told and does no harm."""
        _closed(self._entry, "close", self._inner.close)


_SESSION = ("ttl", "local_addr", "remote_addr", "create", "put", "delete", "list", "watch", "close")


class _Losing:
    """Tells the engine that a session is lost, with the plug-in's name if that is its fault."""

    def __init__(self, entry: Entry, on_lost: Callable[[ConnectionLost], None]) -> None:
        self._entry, self._on_lost = entry, on_lost
        self.broken: ConnectionLost | None = None

    def __call__(self, error: Any) -> None:
        if not isinstance(error, ConnectionLost):
            error = self.breaks(misfit(self._entry, "its call of on_lost", error, "a ConnectionLost", verb="gave"))
        elif isinstance(error.__cause__, PluginError):
            error = self.breaks(_labelled(self._entry, error.__cause__))
        self._on_lost(error)

    def breaks(self, fault: PluginError) -> ConnectionLost:
        """Note that the plug-in is at fault; returns what every call of the session raises from now on."""
        self.broken = ConnectionLost(str(fault), remedy=fault.remedy)
        self.broken.__cause__ = fault
        return self.broken

    def because(self, fault: PluginError) -> ConnectionLost:
        """Tell it at once; returns what to raise."""
        error = self.breaks(fault)
        self._on_lost(error)
        return error


class CheckedSession(_Checked):
    """A ``Session``, and one that ``EndsSessions``. As thread-safe as that is."""

    _inner: Session

    def __init__(self, inner: Session, entry: Entry, lost: _Losing) -> None:
        super().__init__(inner, entry)
        self._lost = lost

    def create(self, key: str, value: bytes, **given: Any) -> tuple[bool, KeyValue]:
        return self._asked("create", self._inner.create, key, value, **given)

    def put(self, items: Mapping[str, bytes], **given: Any) -> int | None:
        return self._asked("put", self._inner.put, items, **given)

    def delete(self, keys: Iterable[str], **given: Any) -> bool:
        return self._asked("delete", self._inner.delete, keys, **given)

    def list(self, prefix: str, **given: Any) -> tuple[Sequence[KeyValue], int]:
        return self._asked("list", self._inner.list, prefix, **given)

    def watch(self, prefix: str, on_events: OnEvents, *, after: int = 0, timeout: float) -> Watch:
        from rdzv_plugins.coordination import are_events

        def tell(events: Sequence[Event]) -> None:
            if are_events(events):
                on_events(events)
            elif self._lost.broken is None:
                self._lost.because(misfit(self._entry, "watch", events, "a sequence of Event", verb="told"))

        return self._asked("watch", self._inner.watch, prefix, tell, after=after, timeout=timeout)

    def end_session(self, key: str, *, timeout: float) -> bool:
        from rdzv_plugins.coordination import EndsSessions

        ends: Any = self._inner
        return isinstance(ends, EndsSessions) and self._asked("end_session", ends.end_session, key, timeout=timeout)

    def close(self) -> None:
        _closed(self._entry, "close of a session", self._inner.close)

    def _asked(self, method: str, ask: Callable[..., T], *arguments: Any, **given: Any) -> T:
        from rdzv_plugins.coordination import wrong_answer

        if self._lost.broken is not None:
            raise _again(self._lost.broken)
        when = f"in {method}() of a session"
        try:
            with blaming(self._entry, when, but=_is_of_system):
                answer = ask(*arguments, **given)
        except TimeoutError:
            raise
        except OSError as error:  # the connection is of no use; another session may be
            lost = ConnectionLost(str(_blame(self._entry, when, error)))
            self._lost(lost)
            raise lost from error
        except PluginError as error:
            lost = self._lost.because(_labelled(self._entry, error))
            raise lost from lost.__cause__
        except ConnectionLost as error:
            if isinstance(error.__cause__, PluginError):  # the kit has told it, or is about to
                error = self._lost.breaks(_labelled(self._entry, error.__cause__))
            raise error from error.__cause__
        if wrong := wrong_answer(method, answer, guarded=given.get("guard") is not None):
            raise self._lost.because(_labelled(self._entry, BrokenPlugin(f"{wrong} ({when})")))
        return answer


def misfit(entry: Entry, method: str, value: object, wanted: str, verb: str = "returned") -> BrokenPlugin:
    """The error for a value that the contract does not allow."""
    from rdzv_plugins.coordination import shown

    fault = f"{verb} {shown(value)} from {method}, not {wanted}"
    return BrokenPlugin(f"{entry.record.label} {fault}", remedy=_try_it(entry))


def _closed(entry: Entry, what: str, close: Callable[[], object]) -> None:
    try:
        close()
    except Exception as error:
        if is_signal(error):
            raise
        logger.warning("%s", _blame(entry, f"in {what}()", error))


def _labelled(entry: Entry, error: PluginError) -> PluginError:
    """The error with the plug-in's name: the kit, which has noticed it, does not know that."""
    if entry.record.label in str(error):
        return error
    told = BrokenPlugin(f"{entry.record.label}: {error}", remedy=error.remedy or _try_it(entry))
    told.__cause__ = error.__cause__
    return told


def _try_it(entry: Entry) -> str:
    return f"This is a bug of the plug-in; `rdzv conformance {entry.backend.name}` tests it."


def _again(lost: ConnectionLost) -> ConnectionLost:
    error = ConnectionLost(str(lost), remedy=lost.remedy)
    error.__cause__ = lost.__cause__
    return error


def is_of_torch(error: Exception) -> bool:
    """Whether it is one of torch's own errors, which code around torch knows by their types."""
    return "torch" in sys.modules and any(kind.__module__.split(".")[0] == "torch" for kind in type(error).__mro__)


def _is_of_system(error: Exception) -> bool:
    return isinstance(error, OSError)


def _blame(entry: Entry, when: str, error: Exception) -> BrokenPlugin:
    """The error for a plug-in that has raised something unintended."""
    return BrokenPlugin(f"{entry.record.label} raised {type(error).__name__} {when}: {error}")


class _Asks:
    """Asks a plug-in's handler; what the class does not ask for is as in the base class of handlers."""

    def __init__(self, inner: TorchHandler, entry: Entry) -> None:
        self._inner, self._entry = inner, entry

    def _asked(self, name: str, ask: Callable[[TorchHandler], Any]) -> Any:
        """What a method of the handler returns; torch's errors are in the contract."""
        where = f"{name}() of its handler"
        with blaming(self._entry, f"in {where}", but=_is_expected):
            answer = ask(self._inner)
        is_right, wanted = _HANDLER_ANSWERS.get(name, (lambda _: True, ""))
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
_HANDLER_ANSWERS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
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


def _handler_class(names: Iterable[str]) -> Callable[[TorchHandler, Entry], RendezvousHandler]:
    """A handler that asks the plug-in's for these members.

    It is made of the contract, so it has all that this asks of one.
    """
    return type("CheckedHandler", (_Asks, RendezvousHandler), {name: _asking(name, _MEMBERS[name]) for name in names})


_CheckedHandler = _handler_class(_MEMBERS)
_CheckedTorchHandler = _handler_class(RendezvousHandler.__abstractmethods__)
"""A handler of torch, or an object like one, knows of nothing but its rounds."""
