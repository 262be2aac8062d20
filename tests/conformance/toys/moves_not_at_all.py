"""Fault: it declares to take several endpoints, and meets at the first of them alone, whatever becomes of it."""

import dataclasses

from right_coordination import Service, backend

from rdzv_plugins import Capability, hookimpl


@hookimpl
def rdzv_register_backends():
    right = backend("moves-not-at-all", Service)

    def first(request):
        return dataclasses.replace(request, endpoint=request.endpoint.partition(",")[0])

    def create(request):
        return right.create(dataclasses.replace(first(request), target=right.validate(first(request))))

    return dataclasses.replace(
        right,
        create=create,
        validate=lambda request: right.validate(first(request)),
        capabilities=right.capabilities | {Capability.SEVERAL_ENDPOINTS},
    )
