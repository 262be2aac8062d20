"""Fault: a put is done whether its guard has changed or not."""

from right_coordination import Session, backend, service_of

from rdzv_plugins import hookimpl


class Unguarded(Session):
    def put(self, items, *, ephemeral=False, guard=None, timeout):
        return super().put(items, ephemeral=ephemeral, timeout=timeout)


@hookimpl
def rdzv_register_backends():
    return backend("coordination-ignores-guard", service_of(Unguarded))
