"""What a plug-in's objects return or raise wrongly is put down to it: its distribution, the method, the value."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest

from rdzv_plugins import Backend, Request
from rdzv_plugins.coordination import EndsSessions, Event, KeyValue
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.errors import BrokenPlugin, ConnectionLost, EndpointUnreachable, RendezvousTimeout
from rdzv_plugins.interfaces import RendezvousHandler, RoundInfo, StoreInfo
from rdzv_plugins.registry import PluginHost, PluginRecord
from rdzv_plugins.registry.catalog import Entry
from rdzv_plugins.registry.contract_checks import checked
from rdzv_plugins.registry.create import create_rendezvous
from rdzv_plugins.registry.rendezvous import Rendezvous

T = 60.0
HELD = KeyValue("k", b"", 1)


class Raises:
    """Stands for an error that a method raises."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self.error


def answering(wrong: Any) -> Callable[..., Any]:
    return wrong if isinstance(wrong, Raises) else lambda *_, **__: wrong


def shown(wrong: Any) -> str:
    return type(wrong.error).__name__ if isinstance(wrong, Raises) else repr(wrong)


def entry(created: Any = None, **fields: Any) -> Entry:
    record = PluginRecord("toy", "toy_module", "rdzv-toy", "1.0")
    return Entry(Backend(name="toy", summary="a toy", create=lambda _: created, **fields), record)


def rendezvous_on(created: Any) -> Rendezvous:
    request = Request("toy", "run", "", 1, 2, 1, options=ElasticOptions(timeout=T, ttl=T))
    return create_rendezvous(PluginHost([]), entry(created), request)


def blames(ask: Callable[[], object], *words: str, kind: type[Exception] = BrokenPlugin) -> BaseException:
    """The error that comes of it, which names the plug-in and these."""
    with pytest.raises(kind) as caught:
        ask()
    assert [word for word in ("rdzv-toy 1.0", *words) if word not in str(caught.value)] == [], str(caught.value)
    return caught.value


class Session:
    """Right, and empty: a method of its class is replaced by what it returns or ``Raises``."""

    remote_addr = local_addr = "127.0.0.1"
    ttl = T

    def __init__(self, on_lost: Callable[[ConnectionLost], None]) -> None:
        self.on_lost = on_lost

    def create(self, key: str, value: bytes, **_: Any) -> Any:
        return True, KeyValue(key, value, 1)

    def put(self, items: Any, *, guard: KeyValue | None = None, **_: Any) -> Any:
        return 1 if guard is None or guard.revision == 1 else None

    def delete(self, names: Any, **_: Any) -> Any:
        return True

    def list(self, prefix: str, **_: Any) -> Any:
        return [], 1

    def watch(self, prefix: str, on_events: Any, **_: Any) -> Any:
        return SimpleNamespace(cancel=lambda: None)

    def close(self) -> None: ...


class Coordination:
    name, hosts_service = "toy", False

    def __init__(self, method: str = "", wrong: Any = None) -> None:
        self.session = type("Wrong", (Session,), {method: answering(wrong)} if method else {})
        self.opened: list[Any] = []

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> Any:
        self.opened.append(self.session(on_lost))
        return self.opened[-1]

    def close(self) -> None: ...


def session_of(created: Any, lost: list[ConnectionLost]) -> Any:
    return checked(created, entry(created)).open_session(T, on_lost=lost.append, timeout=T)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("method", "wrong", "value"),
    [
        ("create", ("yes", HELD), "'yes'"),
        ("put", True, "True"),
        ("put", None, "guard"),
        ("list", ([("k", b"")], 1), "('k', b'')"),
        ("list", ([KeyValue("k", "text", 1)], 1), "'text'"),  # type: ignore[arg-type]
        ("watch", None, "None"),
        ("create", Raises(KeyError("slot")), "KeyError"),
    ],
)
def test_a_node_ends_with_what_its_plugins_session_did(method: str, wrong: Any, value: str) -> None:
    rendezvous = rendezvous_on(Coordination(method, wrong))
    try:
        error = blames(rendezvous.next_rendezvous, method, value)
        assert "rdzv conformance toy" in error.remedy or isinstance(wrong, Raises)  # type: ignore[attr-defined]
    finally:
        rendezvous.shutdown()


def watched(events: Any) -> Callable[..., Any]:
    def watch(self: Any, prefix: str, on_events: Callable[..., None], **_: Any) -> Any:
        on_events(events)
        return SimpleNamespace(cancel=lambda: None)

    return watch


@pytest.mark.parametrize(
    ("events", "method"),
    [(None, "watch"), ([HELD], "watch"), ([Event("k", b"", "1")], "watch"), ("gone", "delete"), ("gone", "on_lost")],  # type: ignore[arg-type]
)
def test_a_fault_ends_the_session_and_every_later_call_says_so(events: Any, method: str) -> None:
    told: list[Any] = []
    lost: list[ConnectionLost] = []
    created = Coordination("delete", events)
    created.session.watch = watched(events)  # type: ignore[attr-defined]
    session = session_of(created, lost)
    if method == "on_lost":
        created.opened[0].on_lost(events)
    elif method == "watch":
        session.watch("", told.append, timeout=T)
    else:
        with pytest.raises(ConnectionLost):
            session.delete(["k"], timeout=T)
    assert told == []
    error = blames(lambda: session.create("k", b"", timeout=T), method, repr(events), kind=ConnectionLost)
    assert isinstance(error.__cause__, BrokenPlugin)
    assert [str(each) for each in lost] == [str(error)]


def test_an_error_of_the_network_is_no_fault_of_the_plugin() -> None:
    lost: list[ConnectionLost] = []
    session = session_of(Coordination("put", Raises(ConnectionResetError("reset by peer"))), lost)
    with pytest.raises(ConnectionLost, match="reset by peer") as caught:
        session.put({"k": b""}, timeout=T)
    assert not isinstance(caught.value.__cause__, BrokenPlugin)
    assert len(lost) == 1
    created = Coordination()
    created.open_session = Raises(ConnectionRefusedError("refused"))  # type: ignore[method-assign]
    with pytest.raises(EndpointUnreachable, match="refused"):
        session_of(created, lost)


def test_what_the_contract_allows_passes_unchanged() -> None:
    for error in (TimeoutError("late"), RendezvousTimeout("ours"), KeyboardInterrupt()):
        session = session_of(Coordination("put", Raises(error)), [])
        with pytest.raises(type(error)) as caught:
            session.put({"k": b""}, timeout=T)
        assert caught.value is error
    plain = session_of(Coordination(), [])
    assert isinstance(plain, EndsSessions)
    _, held = plain.create("k", b"v", timeout=T)
    assert plain.put({"k": b"w"}, guard=KeyValue("k", b"v", held.revision + 1), timeout=T) is None


class State:
    name = "toy"

    def __init__(self, wrong: Any) -> None:
        self.get_state = self.set_state = answering(wrong)


@pytest.mark.parametrize("wrong", [b"state", ("text", 1), (b"state",), Raises(KeyError("slot")), (b"", 1, "yes")])
def test_a_state_backend_that_answers_wrongly_is_named(wrong: Any) -> None:
    state: Any = checked(State(wrong), entry())
    blames(state.get_state, "get_state", shown(wrong))
    blames(lambda: state.set_state(b""), "set_state")


def test_a_state_backend_may_raise_what_torch_tries_again_and_have_no_state() -> None:
    state: Any = checked(State(Raises(BlockingIOError("locked"))), entry())
    with pytest.raises(BlockingIOError):
        state.get_state()
    assert checked(State(None), entry()).get_state() is None  # type: ignore[union-attr]


class Store:
    def wait(self, keys: Any) -> None: ...


ROUND = RoundInfo(Store(), 0, 1, StoreInfo("h", 29500))
RIGHT: dict[str, Any] = {
    "next_rendezvous": ROUND,
    "num_nodes_waiting": 0,
    "is_closed": False,
    "set_closed": None,
    "get_backend": "toy",
    "get_run_id": "run",
    "shutdown": True,
}


def handler(method: str = "", wrong: Any = None) -> Any:
    """A plug-in's own handler, right in everything but ``method``."""
    given = {name: answering(answer) for name, answer in (RIGHT | {method: wrong}).items()}
    given["use_agent_store"] = wrong if method == "use_agent_store" else True  # type: ignore[assignment]
    return type("Handler", (RendezvousHandler,), given)()


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("next_rendezvous", None),
        ("next_rendezvous", (Store(), 0, 1)),
        ("next_rendezvous", RoundInfo(Store(), 1, 1)),
        ("next_rendezvous", RoundInfo(Store(), 0, 1, StoreInfo("h", "29500"))),  # type: ignore[arg-type]
        ("next_rendezvous", Raises(IndexError("no node"))),
        ("get_run_id", 7),
        ("must_rejoin", None),
        ("first_failure", "rank 0"),
        ("waits_for", None),
        ("use_agent_store", None),
        ("raise_if_ended", Raises(KeyError("slot"))),
    ],
)
def test_a_plugins_own_handler_that_answers_wrongly_is_named(method: str, wrong: Any) -> None:
    asked = rendezvous_on(handler(method, wrong)).handler
    is_method = method != "use_agent_store"
    blames(lambda: getattr(asked, method)() if is_method else asked.use_agent_store, method, shown(wrong))


def test_whatever_the_contract_asks_of_a_handler_reaches_the_plugins() -> None:
    asked: list[str] = []
    members = {name: member for name, member in vars(RendezvousHandler).items() if name[0] != "_"}

    def noted(name: str) -> Callable[..., Any]:
        return lambda _, *arguments: asked.append(name)

    own = {name: noted(name) if callable(member) else name for name, member in members.items()}
    made = checked(type("Own", (RendezvousHandler,), own)(), entry())
    assert (made.holding, made.questions) == ("holding", "questions")  # type: ignore[union-attr]
    for name, member in members.items():
        if callable(member):
            arguments = [None] * (len(signature(member).parameters) - 1)
            with suppress(BrokenPlugin):  # most answer something
                getattr(made, name)(*arguments)
    assert asked == [name for name, member in members.items() if callable(member)]


def test_torchs_errors_are_expected_of_a_handler() -> None:
    from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

    rendezvous = rendezvous_on(handler("next_rendezvous", Raises(RendezvousTimeoutError("torch's"))))
    with pytest.raises(RendezvousTimeoutError, match="torch's"):
        rendezvous.next_rendezvous()
    assert rendezvous_on(handler()).next_rendezvous().world_size == 1


def test_attributes_beyond_the_contract_are_those_of_the_plugins_object() -> None:
    """Such as ``known_until`` of a session, which is optional."""
    created: Any = Coordination()
    border: Any = checked(created, entry(created))
    created.known_until = 3
    assert border.known_until == 3
    assert not hasattr(border, "nothing_of_the_kind")
