from rdzv_plugins import Backend, hookimpl


@hookimpl
def rdzv_register_backends():
    return Backend(name="bad_create", summary="creates a number", create=lambda request: 42)
