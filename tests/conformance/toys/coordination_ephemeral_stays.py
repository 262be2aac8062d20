"""Fault: what a session puts as ephemeral stays when it ends."""

from right_coordination import Session, backend, service_of

from rdzv_plugins import hookimpl


class Staying(Session):
    def put(self, items, *, ephemeral=False, guard=None, timeout):
        return super().put(items, guard=guard, timeout=timeout)


@hookimpl
def rdzv_register_backends():
    return backend("coordination-ephemeral-stays", service_of(Staying))
