"""What the backends that meet at a native store have in common: everything but the name and the options."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from rdzv_plugins.elastic.options import EndpointOptions, validate_endpoint
from rdzv_plugins.interfaces import Backend, Capability, Request

if TYPE_CHECKING:
    from rdzv_plugins.coordination import CoordinationBackend


def native_backend(name: str, alias: str, summary: str, options: type[EndpointOptions]) -> Backend:
    """The backend of this name, served by the node that the endpoint belongs to, or elsewhere by ``rdzv serve``."""

    def create(request: Request) -> CoordinationBackend:
        from rdzv_plugins.elastic.observer import open_places

        return open_places(request, name)

    def preflight(request: Request, held: ExitStack) -> str:
        from rdzv_plugins.elastic.observer import at_native_store

        return at_native_store(request, name, held)

    def recognise(request: Request, timeout: float) -> str:
        from rdzv_plugins.elastic import observer

        return observer.recognise(request, timeout)

    def check() -> None:
        """Raise ``MissingDependency`` if the native store was not built."""
        from rdzv_plugins.kvstore.native.server import native_part

        native_part()

    return Backend(
        name=name,
        summary=summary,
        create=create,
        aliases=(alias,),
        capabilities=frozenset(
            {
                Capability.ELASTIC,
                Capability.NODE_RANK,
                Capability.NODE_REPLACEMENT,
                Capability.SEVERAL_ENDPOINTS,
                Capability.TOKEN,
            }
        ),
        options=options,
        validate=validate_endpoint,
        check=check,
        preflight=preflight,
        meets_at="node",
        recognise=recognise,
    )
