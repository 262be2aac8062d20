"""Fault: a session is said to be known to live for longer than the service would keep it."""

from right_coordination import Session, backend, service_of

from rdzv_plugins import hookimpl


class Confident(Session):
    @property
    def known_until(self):
        return self.inner.known_until + 3600


@hookimpl
def rdzv_register_backends():
    return backend("coordination-knows-too-much", service_of(Confident))
