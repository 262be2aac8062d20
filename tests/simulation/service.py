"""A coordination service of the simulated world; its clients' sessions are in ``sessions``.

Like the native server it may tell sessions by their connections (``by_connection``): one whose connection breaks ends
at once. Otherwise, like etcd, it knows them by leases, and a client that has lost its connection makes another. It
counts a session's time to live from what it has heard last, by its own clock.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.elastic.keys import ROUND, Round, decode
from rdzv_plugins.errors import AccessRefused, EndpointUnreachable
from simulation.network import End, Network
from simulation.scheduler import Process

PORT = 2379

Message = tuple[Any, ...]


class Store:
    """The keys of one run, with revisions and leases. No network, no time but ``now``."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self.leases: dict[int, tuple[float, float]] = {}
        """Of each session the time to live, and when it ends."""
        self.on_write: Callable[[str, bytes | None], object] = lambda key, value: None
        """Somebody of the world wants to know."""
        self.runs: list[float] = []
        """When what was known was forgotten: the rounds of a run are counted from 1 again then."""
        self.forget(0.0)

    def forget(self, now: float) -> None:
        """Begin anew. No later session has the number of an earlier one."""
        self.leases.clear()
        self.runs.append(now)
        self.revision = 0
        self.compacted = 0
        """Changes up to this revision are no longer known."""
        self.keys: dict[str, tuple[KeyValue, int]] = {}
        """With the session that an ephemeral key belongs to, or 0."""
        self.history: list[Event] = []

    def open(self, ttl: float, now: float) -> int:
        """A new session. If it is the only one, what exists was left by a dead run."""
        if not self.leases:
            self.runs += [now] if self.keys else []
            for key in list(self.keys):
                self._write(key, None, 0)
        session = next(self._ids)
        self.leases[session] = ttl, now + ttl
        return session

    def beat(self, session: int, now: float) -> bool:
        """It was heard of; False if it has ended."""
        lease = self.leases.get(session)
        if lease is None:
            return False
        self.leases[session] = lease[0], now + lease[0]
        return True

    def end(self, session: int) -> bool:
        """End it, with its keys."""
        if self.leases.pop(session, None) is None:
            return False
        for key in [key for key, (_, owner) in self.keys.items() if owner == session]:
            self._write(key, None, 0)
        return True

    def compact(self) -> None:
        """Forget what has happened so far."""
        self.compacted, self.history = self.revision, []

    def create(self, session: int, key: str, value: bytes, ephemeral: bool) -> tuple[bool, KeyValue]:
        absent = key not in self.keys
        if absent:
            self._write(key, value, session if ephemeral else 0)
        return absent, self.keys[key][0]

    def put(self, session: int, items: Mapping[str, bytes], ephemeral: bool, guard: KeyValue | None) -> int | None:
        if not self._unchanged(guard):
            return None
        for key, value in items.items():
            self._write(key, value, session if ephemeral else 0)
        return self.revision

    def delete(self, _: int, keys: Sequence[str], guard: KeyValue | None) -> bool:
        if not self._unchanged(guard):
            return False
        for key in keys:
            if key in self.keys:
                self._write(key, None, 0)
        return True

    def list(self, _: int, prefix: str) -> tuple[Sequence[KeyValue], int]:
        held = (kv for kv, _ in self.keys.values() if kv.key.startswith(prefix))
        return sorted(held, key=lambda kv: kv.revision), self.revision

    def end_session(self, session: int, key: str) -> bool:
        owner = self.keys[key][1] if key in self.keys else 0
        return owner not in (0, session) and self.end(owner)

    def changes(self, prefix: str, after: int) -> Sequence[Event] | None:
        """What has happened since; None if that is no longer known."""
        if after == 0:
            held = sorted((kv for kv, _ in self.keys.values()), key=lambda kv: kv.revision)
            return [Event(kv.key, kv.value, kv.revision) for kv in held if kv.key.startswith(prefix)]
        if after < self.compacted:
            return None
        return [each for each in self.history[after - self.compacted :] if each.key.startswith(prefix)]

    def changed(self, prefix: str, after: int, known: Iterable[str]) -> Sequence[Event]:
        """What is different from ``known``, the keys at ``after``, though the changes are no longer known."""
        gone = [Event(key, None, self.revision) for key in known if key not in self.keys]
        return [*(each for each in self.changes(prefix, 0) or () if each.revision > after), *gone]

    def _unchanged(self, guard: KeyValue | None) -> bool:
        return guard is None or (guard.key in self.keys and self.keys[guard.key][0].revision == guard.revision)

    def _write(self, key: str, value: bytes | None, owner: int) -> None:
        self.revision += 1
        if value is None:
            del self.keys[key]
        else:
            self.keys[key] = KeyValue(key, value, self.revision), owner
        self.history.append(Event(key, value, self.revision))
        self.on_write(key, value)


@dataclass
class Faults:
    """What is wrong with a service now; a test or a fault of a seed changes it."""

    answers_take: float = 0.0
    """Seconds until an answer is sent."""
    pushes_take: float = 0.0
    """Seconds until clients are told what their watches are for, and that a session is over."""
    pushes_vary: bool = False
    """Each takes a time of its own, up to that: what clients are told over one connection overtakes another's."""
    calls_take: dict[str, float] = field(default_factory=dict)
    """Seconds until a process's own thread passes on what it was told, by the name of the process."""
    loses_answers: bool = False
    """What is asked is done, and nobody hears of it."""
    loses_beats: bool = False
    """The same for keep-alives alone."""
    full: bool = False
    """Nothing more is written: such a request has no answer. Keys are deleted, and sessions go on."""
    wants_token: bool = False
    """It lets nobody in who brings no token, and nobody does."""
    most_sessions: int | None = None


class Moment(NamedTuple):
    """Something that happens when a request is made."""

    name: str
    key: str
    happens: Callable[[_Client], object]
    lost: Literal["request", "answer", ""]

    def is_now(self, name: str, arguments: Sequence[Any]) -> bool:
        if name != self.name:
            return False
        asked = arguments[1] if name == "watch" else arguments[0]
        return any(key.startswith(self.key) for key in ([asked] if isinstance(asked, str) else asked))


class Service:
    """The server: a process that answers, and pushes what happens to keys."""

    def __init__(
        self, network: Network, host: str = "service", *, by_connection: bool = True, by_node: bool = False
    ) -> None:
        """``by_node``: a node will serve it, as one of several places."""
        self.network, self.host, self.by_connection, self.by_node = network, host, by_connection, by_node
        self.store, self.faults = Store(), Faults()
        self.ends_sessions = True
        """Whether a client can have it end the session of another."""
        self.asked: Counter[str] = Counter()
        """How often each process has asked for something; keep-alives do not count."""
        self.opened: Counter[str] = Counter()
        """How many sessions each process has opened."""
        self.refused: Counter[str] = Counter()
        """How many it was not given."""
        self._clients: dict[End, _Client] = {}
        self._told = 0, 0
        """Up to which revision of which run clients have been told."""
        self._moments: list[Moment] = []
        self._declared: tuple[KeyValue | None, int] = None, 0
        """The newest round, and what says so."""
        self.process = self._nobody() if by_node else self.start()

    def _nobody(self) -> Process:
        process = self.network.scheduler.process("service", self.host)
        self.network.scheduler.kill(process)
        return process

    def start(self, *, memory: bool = True, process: Process | None = None) -> Process:
        """Start it, again if it has been killed; with what it has known, or without; in that process if it is given."""
        if not memory:
            self.store.forget(self.now)
        self._clients = {}
        self.process = process = process or self.network.scheduler.process("service", self.host)
        for session, (ttl, _) in self.store.leases.items():
            self.store.beat(session, self.now)  # it cannot know when each was heard of
            self._expire_later(session, ttl)
        self.network.listen(process, PORT, self._accept)
        return process

    def stop(self) -> None:
        """End it: its process goes on without it."""
        self.network.stop_listening(self.process, PORT)
        for client in list(self._clients.values()):
            client.hang_up()
        self.process = self._nobody()

    @property
    def newest(self) -> int:
        """The newest round that was declared here."""
        declared = self.store.keys.get(ROUND)
        if declared is None:
            return 0
        if declared[0] is not self._declared[0]:  # asked all the time
            self._declared = declared[0], decode(Round, declared[0].value).number
        return self._declared[1]

    @property
    def now(self) -> float:
        return self.network.scheduler.now

    @property
    def sessions(self) -> dict[int, Process]:
        """Those of clients that are connected, and whose they are."""
        return {each.session: each.process for each in self._clients.values() if each.session}

    def _accept(self, end: End) -> None:
        client = self._clients[end] = _Client(self, end)
        end.on_message, end.on_end = client.hear, client.ended

    def _expire_later(self, session: int, seconds: float) -> None:
        process = self.process
        self.network.scheduler.at(self.now + seconds, lambda: self._expire(session, process))

    def _expire(self, session: int, process: Process) -> None:
        lease = self.store.leases.get(session)
        if lease is None or process.killed or process is not self.process:
            return
        if process.frozen:  # time passes for it, too, but it hears first what has come meanwhile
            process.on_thaw.append(lambda: self._expire_later(session, 0.0))
        elif lease[1] <= self.now:
            self.end(session)
        else:
            self._expire_later(session, lease[1] - self.now)

    def end(self, session: int) -> None:
        """End a session, and tell everybody."""
        if self.store.end(session):
            self.tell()
            self.told_over(session)

    def told_over(self, session: int) -> None:
        """That session has ended, and what it was told has an end. The native server forgets a run with its last."""
        for client in list(self._clients.values()):
            if client.session == session:
                client.over()
        if self.by_connection and not self.store.leases:
            self.store.forget(self.now)

    def tell(self) -> None:
        """Push what has happened."""
        store = self.store
        if (known := (len(store.runs), store.revision)) != self._told:
            self._told = known
            for client in list(self._clients.values()):
                client.tell()

    def forget(self, end: End) -> None:
        self._clients.pop(end, None)

    def once(
        self, name: str, key: str, happens: Callable[[_Client], object], *, lost: Literal["request", "answer", ""]
    ) -> None:
        """At the next such request with a key that begins so: before it is done, or after it if the answer is lost."""
        self._moments.append(Moment(name, key, happens, lost))

    def moment(self, name: str, arguments: Sequence[Any]) -> Moment | None:
        """What happens now, which it does but once."""
        due = next((each for each in self._moments if each.is_now(name, arguments)), None)
        if due is not None:
            self._moments.remove(due)
        return due


class _Client:
    """A connection, as the server sees it."""

    def __init__(self, service: Service, end: End) -> None:
        self._service, self._end = service, end
        self.session = 0
        self._watches: dict[int, tuple[str, int]] = {}
        self._mute = False
        self._told_at = 0.0
        """When the newest push is sent: none overtakes another."""

    @property
    def process(self) -> Process:
        """Whose it is."""
        return self._end.peer.process

    def _refusal(self) -> EndpointUnreachable | None:
        service = self._service
        if service.faults.wants_token:
            return AccessRefused(f"{service.host} needs a token")
        most = service.faults.most_sessions
        if most is not None and len(service.store.leases) >= most:
            return EndpointUnreachable(f"{service.host} opens no session: too many sessions")
        return None

    def hear(self, message: Any) -> None:
        if isinstance(message, bytes):  # somebody wants to see that it answers
            self._end.send(message)
            return
        number, name, *arguments = message
        service, store = self._service, self._service.store
        if name == "open":
            if refusal := self._refusal():
                service.refused[self.process.name] += 1
                self.say(number, False, refusal)
                return
            self.session = store.open(arguments[0], service.now)
            service.opened[self.process.name] += 1
            service._expire_later(self.session, arguments[0])
            self.say(number, True, self.session)
            return
        self.session = arguments.pop(0)
        alive = store.beat(self.session, service.now)
        if name == "beat":  # most of what is sent
            if not (alive and service.faults.loses_beats):
                self.say(number, alive, None)
            return
        service.asked[self.process.name] += 1
        if not alive:
            self.say(number, alive, None)
            return
        moment = service.moment(name, arguments) if arguments else None
        if moment is not None and moment.lost != "answer":
            moment.happens(self)
        if moment is None or moment.lost != "request":
            self._mute = moment is not None and moment.lost == "answer"
            self._do(number, name, arguments)
            self._mute = False
        if moment is not None and moment.lost == "answer":
            moment.happens(self)

    def _do(self, number: int, name: str, arguments: list[Any]) -> None:
        service, store = self._service, self._service.store
        if name == "watch":
            self._watch(number, *arguments)
        elif name == "cancel":
            self._watches.pop(arguments[0], None)
            self.say(number, True, None)
        elif name == "close":
            store.end(self.session)
            self.say(number, True, None)
            service.tell()
            service.told_over(self.session)
        elif service.faults.full and name in ("create", "put"):
            service.asked[self.process.name] -= 1
            self.say(number, None, None)
        else:
            before = list(store.leases) if name == "end_session" else ()
            answer = getattr(store, name)(self.session, *arguments)
            self.say(number, True, answer)
            service.tell()
            for ended in before:
                if ended not in store.leases:
                    service.told_over(ended)

    def ended(self, _: object) -> None:
        self._service.forget(self._end)
        if self._service.by_connection and self.session:
            self._service.end(self.session)

    def hang_up(self) -> None:
        """The service ends."""
        self._service.forget(self._end)
        self._end.close()

    def over(self) -> None:
        """Its session has ended."""
        self._watches.clear()
        self.say("over")

    def say(self, *message: Any) -> None:
        scheduler, faults = self._service.network.scheduler, self._service.faults
        if message[0] in ("events", "over"):
            takes = faults.pushes_take * (scheduler.random.random() if faults.pushes_vary else 1.0)
            at = self._told_at = max(self._told_at, scheduler.now + takes)
        elif faults.loses_answers or self._mute:
            return
        else:
            at = scheduler.now + faults.answers_take
        if at <= scheduler.now:
            self._send(message)
        else:
            scheduler.at(at, lambda: self._send(message))

    def _send(self, message: Message) -> None:
        if not self._end.ended:
            self._end.send(message)

    def tell(self) -> None:
        store = self._service.store
        for number, (prefix, after) in self._watches.items():
            if after < store.revision:
                self._watches[number] = prefix, store.revision
                if events := store.changes(prefix, after):
                    self.say("events", number, events)

    def _watch(self, number: int, watch: int, prefix: str, after: int, known: Sequence[str] | None = None) -> None:
        """``known``: the keys that it knows of, as it goes on with a watch over another connection."""
        events = self._service.store.changes(prefix, after)
        if events is None and known is not None:
            events = self._service.store.changed(prefix, after, known)
        self.say(number, True, events is not None)
        if events is not None:
            self._watches[watch] = prefix, self._service.store.revision
            if events:
                self.say("events", watch, events)
