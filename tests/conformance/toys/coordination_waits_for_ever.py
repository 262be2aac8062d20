"""Fault: a request takes as long as it takes, whatever time-out it was given."""

from right_coordination import Session, backend, service_of

from rdzv_plugins import hookimpl


class Patient(Session):
    def put(self, items, *, ephemeral=False, guard=None, timeout):
        return super().put(items, ephemeral=ephemeral, guard=guard, timeout=3600)


@hookimpl
def rdzv_register_backends():
    return backend("coordination-waits-for-ever", service_of(Patient))
