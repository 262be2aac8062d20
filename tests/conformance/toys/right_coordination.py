"""Coordination by the native store, as ``parallel`` has it: right in everything. Toys put one fault into it."""

from rdzv_plugins import Backend, Capability
from rdzv_plugins.elastic.endpoint_options import EndpointOptions, validate


class Session:
    """A session that passes everything on; a toy changes what it does wrong."""

    def __init__(self, inner):
        self.inner = inner
        self.ttl, self.local_addr, self.remote_addr = inner.ttl, inner.local_addr, inner.remote_addr

    @property
    def known_until(self):
        return self.inner.known_until

    def create(self, key, value, *, ephemeral=False, timeout):
        return self.inner.create(key, value, ephemeral=ephemeral, timeout=timeout)

    def put(self, items, *, ephemeral=False, guard=None, timeout):
        return self.inner.put(items, ephemeral=ephemeral, guard=guard, timeout=timeout)

    def delete(self, keys, *, guard=None, timeout):
        return self.inner.delete(keys, guard=guard, timeout=timeout)

    def list(self, prefix, *, timeout):
        return self.inner.list(prefix, timeout=timeout)

    def watch(self, prefix, on_events, *, after=0, timeout):
        return self.inner.watch(prefix, on_events, after=after, timeout=timeout)

    def close(self):
        self.inner.close()


class Service:
    """A ``CoordinationBackend`` whose sessions are of the class ``session``."""

    session = Session

    def __init__(self, inner):
        self.inner = inner
        self.name, self.hosts_service = inner.name, inner.hosts_service

    def open_session(self, ttl, *, on_lost, timeout):
        return self.session(self.inner.open_session(ttl, on_lost=on_lost, timeout=timeout))

    def close(self):
        self.inner.close()


def backend(name, service=Service):
    """The descriptor of a backend whose ``create`` returns a ``service``."""

    def create(request):
        from rdzv_plugins.kvstore.coordination.service import open_service

        return service(open_service(request, name))

    return Backend(
        name=name,
        summary="coordination by the native store",
        create=create,
        capabilities=frozenset({Capability.ELASTIC, Capability.NODE_RANK, Capability.NODE_REPLACEMENT}),
        options=EndpointOptions,
        validate=validate,
    )


def service_of(session_class):
    """``Service`` with sessions of that class."""
    return type("ToyService", (Service,), {"session": session_class})
