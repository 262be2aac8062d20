from rdzv_plugins import hookimpl


@hookimpl
def rdzv_register_backends():
    return {"name": "wrong_return"}
