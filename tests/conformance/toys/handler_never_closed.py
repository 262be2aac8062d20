"""Fault: a handler that was closed does not say so."""

from rdzv_plugins import Backend, Capability, hookimpl
from rdzv_plugins.backends.static import StaticOptions, validate


def create(request):
    from rdzv_plugins.backends import static

    handler = static.create(request)
    handler.set_closed = lambda: None
    return handler


@hookimpl
def rdzv_register_backends():
    return Backend(
        name="handler-never-closed",
        summary="a toy",
        create=create,
        capabilities=frozenset({Capability.NODE_RANK}),
        options=StaticOptions,
        validate=validate,
    )
