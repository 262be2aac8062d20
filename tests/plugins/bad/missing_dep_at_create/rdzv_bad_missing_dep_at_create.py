from rdzv_plugins import Backend, hookimpl


def create(request):
    import rdzv_absent_client

    return rdzv_absent_client.connect(request.endpoint)


@hookimpl
def rdzv_register_backends():
    return Backend(
        name="missing_dep_at_create",
        summary="imports late",
        create=create,
        install="apt-get install absent-client",
    )
