"""Fault: a watch tells what is there when it begins, and nothing that happens then."""

from right_coordination import Session, backend, service_of

from rdzv_plugins import hookimpl


class Dropping(Session):
    def watch(self, prefix, on_events, *, after=0, timeout):
        now = self.list(prefix, timeout=timeout)[1]

        def those_of_before(events):
            if any(each.revision <= now for each in events):
                on_events(events)

        return super().watch(prefix, those_of_before, after=after, timeout=timeout)


@hookimpl
def rdzv_register_backends():
    return backend("coordination-drops-events", service_of(Dropping))
