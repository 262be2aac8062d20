"""Fault: of several changes that come at once, a watch tells all but the last."""

from right_coordination import Session, backend, service_of

from rdzv_plugins import hookimpl


class Forgetful(Session):
    def watch(self, prefix, on_events, *, after=0, timeout):
        def some(events):
            on_events(events[:-1] if len(events) > 1 else events)

        return super().watch(prefix, some, after=after, timeout=timeout)


@hookimpl
def rdzv_register_backends():
    return backend("coordination-loses-event", service_of(Forgetful))
