from rdzv_plugins import Backend, hookimpl


@hookimpl
def rdzv_register_backend():
    return Backend(name="misspelt_hook", summary="never made", create=lambda request: None)
