from rdzv_plugins import Backend


def rdzv_register_backends():
    return Backend(name="unmarked_hook", summary="never made", create=lambda request: None)
