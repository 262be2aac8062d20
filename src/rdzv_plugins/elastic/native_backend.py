"""What the backends that meet at a native store have in common: everything but the name and the options."""

from __future__ import annotations

from typing import Any

from rdzv_plugins.elastic.options import EndpointOptions, validate_endpoint
from rdzv_plugins.interfaces import Backend, Capability


def native_backend(name: str, alias: str, summary: str, options: type[EndpointOptions]) -> Backend:
    """The backend of this name, served by the node that the endpoint belongs to, or elsewhere by ``rdzv serve``."""

    def check() -> None:
        """Raise ``MissingDependency`` if the native store was not built."""
        from rdzv_plugins.kvstore.native.server import native_part

        native_part()

    return Backend(
        name=name,
        summary=summary,
        create=lambda request: _service().open_endpoints(request, name),
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
        preflight=lambda request, held: _service().at_native_store(request, name, held),
        meets_at="node",
        recognise=lambda request, timeout: _service().recognise(request, timeout),
    )


def _service() -> Any:
    """What a listing of backends does not load."""
    from rdzv_plugins.elastic import observer

    return observer
