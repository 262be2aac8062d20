"""Coordination by the native store, as ``parallel`` has it: right in everything. Each toy puts one fault into it."""

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import threading
import time
from types import SimpleNamespace

from toy_registry import toy

from rdzv_plugins import Backend, Capability, Event
from rdzv_plugins.elastic.options import EndpointOptions, validate_endpoint
from rdzv_plugins.errors import ConnectionLost, RdzvError


class Session:
    """A session that passes everything on; a toy changes what it does wrong."""

    def __init__(self, inner):
        self.inner, self.ttl = inner, inner.ttl

    def __getattr__(self, name):
        return getattr(self.inner, name)


@toy("coordination-right")
class Service:
    """A ``CoordinationBackend`` whose sessions are of the class ``session``. No fault: what is found is due to one."""

    session = Session

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def open_session(self, ttl, *, on_lost, timeout):
        return self.session(self.inner.open_session(ttl, on_lost=on_lost, timeout=timeout))


def backend(name, kind):
    """The descriptor of a backend whose ``create`` returns a service of that class, or one with such sessions."""
    service = type("ToyService", (Service,), {"session": kind}) if issubclass(kind, Session) else kind

    def create(request):
        from rdzv_plugins.kvstore.coordination.sessions import open_service

        return service(open_service(request, name))

    return Backend(
        name=name,
        summary="coordination by the native store",
        create=create,
        capabilities=frozenset({Capability.ELASTIC, Capability.NODE_RANK, Capability.NODE_REPLACEMENT}),
        options=EndpointOptions,
        validate=validate_endpoint,
    )


def call(name, method):
    """What is below is done instead of that method of a session, which it gets, with its arguments, as the first."""

    def register(wrong):
        def replaced(session, *args, **options):
            return wrong(getattr(session.inner, method), *args, **options)

        toy(name)(type(wrong.__name__, (Session,), {method: replaced}))
        return wrong

    return register


# faults of calls


@call("coordination-put-hangs", "put")
def put(_, items, **options):
    """It never returns. It can be interrupted."""
    threading.Event().wait()


@call("coordination-deaf", "put")
def deaf(_, items, **options):
    """It never returns, and waits in C, where no signal of Python's is heard."""
    mutex = ctypes.create_string_buffer(256)  # all zeros: PTHREAD_MUTEX_INITIALIZER
    lock = ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)  # nobody unlocks it


@call("coordination-dies", "put")
def dying(_, items, **options):
    """Ends the process that uses it, as a faulty extension module does: by a signal, or without a word (TOY_DIES)."""
    how = os.environ["TOY_DIES"]
    if how == "exit":
        os._exit(0)
    os.kill(os.getpid(), getattr(signal, how))


@call("coordination-is-slow", "create")
def slow(create, *args, **options):
    """A key takes two seconds to be created."""
    time.sleep(2)
    return create(*args, **options)


@call("coordination-late-answer", "put")
def patient(put, items, *, timeout, **options):
    """A request takes a minute if need be, whatever time-out it was given."""
    return put(items, timeout=max(timeout, 60), **options)


@call("coordination-ignores-guard", "put")
def unguarded(put, items, *, guard=None, **options):
    """A put is done whether its guard has changed or not."""
    return put(items, **options)


@call("coordination-ephemeral-stays", "put")
def staying(put, items, *, ephemeral=False, **options):
    """What a session puts as ephemeral stays when it ends."""
    return put(items, **options)


@toy("coordination-reads-stale")
class Stale(Session):
    """What a session has listed once, it lists again."""

    def list(self, prefix, *, timeout):
        held = self.__dict__.setdefault("held", {})
        if prefix not in held:
            held[prefix] = self.inner.list(prefix, timeout=timeout)
        return held[prefix]


@toy("scale-asks-for-each")
class AsksForEach(Session):
    """Whenever a node writes something it looks at every member of the run, one by one."""

    def put(self, items, *, timeout, **options):
        held, _ = self.inner.list("members/", timeout=timeout)
        for each in held:
            self.list(each.key, timeout=timeout)
        return self.inner.put(items, timeout=timeout, **options)


# faults of watches


@call("coordination-calls-after-cancel", "watch")
def talkative(watch, *args, **options):
    """A watch that was cancelled goes on."""
    watch(*args, **options)
    return SimpleNamespace(cancel=lambda: None)


@call("coordination-loses-event", "watch")
def forgetful(watch, prefix, on_events, **options):
    """Of several changes that come at once, a watch tells all but the last."""
    return watch(prefix, lambda events: on_events(events[:-1] or events), **options)


@toy("coordination-drops-events")
class Dropping(Session):
    """A watch tells what is there when it begins, and nothing that happens then."""

    def watch(self, prefix, on_events, *, timeout, **options):
        now = self.list(prefix, timeout=timeout)[1]

        def of_before(events):
            if any(each.revision <= now for each in events):
                on_events(events)

        return self.inner.watch(prefix, of_before, timeout=timeout, **options)


@toy("scale-polls")
class Polls(Session):
    """Its watches ask again and again what has changed, instead of being told."""

    def watch(self, prefix, on_events, **options):
        watch = self.inner.watch(prefix, on_events, **options)
        threading.Thread(target=self.poll, args=(prefix,), daemon=True).start()
        return watch

    def poll(self, prefix):
        with contextlib.suppress(RdzvError, TimeoutError):  # the session has ended
            while True:
                time.sleep(0.2)
                self.list(prefix, timeout=10)


class OtherPlace(Session):
    """A node is told another place in a round than it has: ``changed``."""

    def watch(self, prefix, on_events, **options):
        return self.inner.watch(prefix, lambda events: on_events([*map(self.told, events)]), **options)

    def told(self, event):
        if not event.value or not event.key.startswith("node/"):
            return event
        return Event(event.key, json.dumps(self.changed(json.loads(event.value))).encode(), event.revision)


@toy("rendezvous-same-rank")
class SameRank(OtherPlace):
    """Every node is told that it has rank 0."""

    def changed(self, place):
        return {**place, "rank": 0}


@toy("rendezvous-old-world")
class OldWorld(OtherPlace):
    """In a later round a node is told the size of its first one."""

    world = 0

    def changed(self, place):
        self.world = self.world or place.get("world", 0)
        return {**place, "world": self.world}


# faults of sessions


@toy("coordination-knows-too-much")
class Confident(Session):
    """A session is said to be known to live for longer than the service would keep it."""

    @property
    def known_until(self):
        return self.inner.known_until + 3600


@toy("coordination-lives-longer")
class LivesLonger(Service):
    """Its sessions live for a minute, whatever was asked for and is said."""

    def open_session(self, ttl, *, on_lost, timeout):
        session = super().open_session(max(ttl, 60), on_lost=on_lost, timeout=timeout)
        session.ttl = ttl
        return session


@toy("coordination-leaves-descriptor")
class LeavesDescriptor(Service):
    """A descriptor of each session outlives it."""

    def open_session(self, ttl, *, on_lost, timeout):
        os.open("/dev/null", os.O_RDONLY)
        return super().open_session(ttl, on_lost=on_lost, timeout=timeout)


@toy("coordination-loses-silently")
class Silent(Service):
    """Nobody is told that a session was lost."""

    def open_session(self, ttl, *, on_lost, timeout):
        return super().open_session(ttl, on_lost=lambda error: None, timeout=timeout)


class Rising(Session):
    def put(self, items, **options):
        try:
            return self.inner.put(items, **options)
        except ConnectionLost:
            self.inner = self.reopen()
            return self.inner.put(items, **options)


@toy("coordination-rises-again")
class Phoenix(Service):
    """A session that was lost is replaced by another one in secret: without its keys, and without its watches."""

    def open_session(self, ttl, *, on_lost, timeout):
        def reopen():
            return self.inner.open_session(ttl, on_lost=lambda error: None, timeout=timeout)

        session = Rising(reopen())
        session.reopen = reopen
        return session


# faults of a descriptor


@dataclasses.dataclass(frozen=True)
class Hasty(EndpointOptions):
    def __post_init__(self):
        object.__setattr__(self, "last_call_timeout", 0.0)


@toy("rendezvous-no-last-call")
def no_last_call(name):
    """The first round begins with the minimum of nodes, whatever ``last_call_timeout`` is."""
    return dataclasses.replace(backend(name, Service), options=Hasty)


@toy("moves-not-at-all")
def moves_not_at_all(name):
    """It declares to take several endpoints, and meets at the first of them alone, whatever becomes of it."""
    right = backend(name, Service)

    def first(request):
        return dataclasses.replace(request, endpoint=request.endpoint.partition(",")[0])

    def create(request):
        return right.create(dataclasses.replace(first(request), target=right.validate(first(request))))

    return dataclasses.replace(
        right,
        create=create,
        validate=lambda request: right.validate(first(request)),
        capabilities=right.capabilities | {Capability.SEVERAL_ENDPOINTS},
    )
