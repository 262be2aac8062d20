"""Fault: what a session has listed once, it lists again."""

from right_coordination import Session, backend, service_of

from rdzv_plugins import hookimpl


class Stale(Session):
    def list(self, prefix, *, timeout):
        held = self.__dict__.setdefault("held", {})
        if prefix not in held:
            held[prefix] = super().list(prefix, timeout=timeout)
        return held[prefix]


@hookimpl
def rdzv_register_backends():
    return backend("coordination-reads-stale", service_of(Stale))
